"""Figures as people read them: three significant digits and a unit.

Decimal units (kB, MB, GB) for bytes that move, binary ones (MiB) for memory that is allocated; ``~`` in
front of every predicted figure, ``?`` where a figure is not known. ASCII throughout: terminals, and layout
programs that measure text without knowing other letters, show it as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from optrace.graph import TensorMeta

UNKNOWN = "?"

#: Factors of a unit, smallest first.
Scale = Sequence[tuple[str, float]]

_TIME: Scale = (("us", 1.0), ("ms", 1e3), ("s", 1e6))
_BYTES: Scale = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
_ALLOCATED: Scale = (("B", 1.0), ("KiB", 2.0**10), ("MiB", 2.0**20), ("GiB", 2.0**30), ("TiB", 2.0**40))
_PREFIX: Scale = (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("P", 1e15), ("E", 1e18))

#: What people write for torch's dtypes.
_DTYPE = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}


def number(value: float) -> str:
    """Three significant digits, no exponent where a figure of a program can be expected.

    >>> number(0.08347), number(83.47), number(5.0), number(2674.1), number(0.00002)
    ('0.0835', '83.5', '5', '2,670', '<0.001')
    """
    if 0 < abs(value) < 0.0009995:
        return "<0.001"
    if abs(value) < 99.95:
        return f"{value:.3g}"
    digits = len(f"{abs(value):.0f}")
    return f"{round(value, 3 - digits):,.0f}"


def count(value: float | None) -> str:
    """A whole number in full, since counts are exact.

    >>> count(1204), count(None)
    ('1,204', '?')
    """
    return UNKNOWN if value is None else f"{value:,.0f}"


def counted(value: float | None, one: str, many: str = "") -> str:
    """
    >>> counted(1, "copy", "copies"), counted(1204, "op")
    ('1 copy', '1,204 ops')
    """
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def share(part: float) -> str:
    """A part of the whole, 0 to 1, in percent.

    >>> share(0.714), share(0.004), share(0.0)
    ('71 %', '0.4 %', '0 %')
    """
    percent = 100 * part
    if percent >= 9.95 or percent == 0:
        return f"{percent:.0f} %"
    return f"{percent:.1f} %" if percent >= 0.05 else "<0.1 %"


def predicted_us(us: float | None) -> str:
    """A predicted time.

    >>> predicted_us(5.12), predicted_us(128720.0), predicted_us(0.0), predicted_us(None)
    ('~5.12 us', '~129 ms', '0 us', '?')
    """
    if us is None:
        return UNKNOWN
    if 0 < us < 0.0009995:
        return "~0 us"
    return f"~{_scaled(us, _TIME)}" if us else "0 us"


def moved(nbytes: float | None) -> str:
    """Bytes that move.

    >>> moved(352_000_000), moved(512), moved(None)
    ('352 MB', '512 B', '?')
    """
    return UNKNOWN if nbytes is None else _scaled(nbytes, _BYTES)


def allocated(nbytes: float | None) -> str:
    """Bytes that are allocated.

    >>> allocated(512 << 20)
    '512 MiB'
    """
    return UNKNOWN if nbytes is None else _scaled(nbytes, _ALLOCATED)


def flop(value: float | None) -> str:
    """Arithmetic.

    >>> flop(128e9), flop(0), flop(None)
    ('128 GFLOP', '0 FLOP', '?')
    """
    return UNKNOWN if value is None else f"{_scaled(value, _PREFIX)}FLOP"


def flop_rate(flop_s: float | None) -> str:
    """
    >>> flop_rate(989.4e12)
    '989 TFLOP/s'
    """
    return UNKNOWN if flop_s is None else f"{_scaled(flop_s, _PREFIX)}FLOP/s"


def byte_rate(tb_s: float) -> str:
    """
    >>> byte_rate(3.3)
    '3.3 TB/s'
    """
    return f"{number(tb_s)} TB/s"


def intensity(flop_per_byte: float | None) -> str:
    """
    >>> intensity(0.1667), intensity(None)
    ('0.167 FLOP/B', '?')
    """
    return UNKNOWN if flop_per_byte is None else f"{number(flop_per_byte)} FLOP/B"


def tensor(meta: TensorMeta) -> str:
    """Dtype and shape: ``bf16[8, 64]``."""
    return f"{dtype(meta.dtype)}[{', '.join(map(str, meta.shape))}]"


def dtype(name: str) -> str:
    """
    >>> dtype("bfloat16"), dtype("bool")
    ('bf16', 'bool')
    """
    return _DTYPE.get(name, name)


def _scaled(value: float, scale: Scale) -> str:
    """In the largest unit that leaves at least 1 after rounding to three digits."""
    unit, factor = scale[0]
    for larger_unit, larger_factor in scale[1:]:
        if abs(value) < 0.9995 * larger_factor:
            break
        unit, factor = larger_unit, larger_factor
    return f"{number(value / factor)} {unit}"
