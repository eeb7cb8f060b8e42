"""What other tools' JSON files look like: by which outer fields they are told apart, and what they call element types.

Needs no torch: the command looks at a file before it imports anything.
"""

from __future__ import annotations

import gzip
import zlib
from io import BytesIO
from typing import Literal

import msgspec

_GZIP = b"\x1f\x8b"

#: What a gzipped trace may hold: a profile of minutes. A few KB can unpack to any size.
LARGEST_BYTES = 4 << 30

#: The C++ names of element types, as torch's profiler writes them (gcc's come first, those of clang and MSVC after).
CPP_DTYPES = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short unsigned int": "uint16",
    "unsigned int": "uint32",
    "long unsigned int": "uint64",
    "bool": "bool",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    "c10::complex<c10::Half>": "complex32",
    "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
    "c10::Float8_e4m3fnuz": "float8_e4m3fnuz",
    "c10::Float8_e5m2fnuz": "float8_e5m2fnuz",
    "c10::Float8_e8m0fnu": "float8_e8m0fnu",
    "c10::Float4_e2m1fn_x2": "float4_e2m1fn_x2",
    "long": "int64",
    "long long": "int64",
    "__int64": "int64",
    "short": "int16",
    "unsigned short": "uint16",
    "unsigned long": "uint64",
    "unsigned long long": "uint64",
}

_OF_DTYPE = {dtype: name for name, dtype in reversed(CPP_DTYPES.items())}

#: What wrote a file: torch's profiler, ``ExecutionTraceObserver``, optrace (its timeline in the profiler's format, or
#: any file that says its ``format``: a ``graph.json``).
Writer = Literal["profiler", "execution trace", "optrace timeline", "optrace graph"]


class NotJsonError(ValueError):
    """The data is no JSON object, or not all of it is there. The message says why."""


def cpp_dtype(dtype: str) -> str:
    """``float`` of ``float32``; the name itself where C++ has none."""
    return _OF_DTYPE.get(dtype, dtype)


class _Outer(msgspec.Struct):
    traceEvents: msgspec.Raw = msgspec.Raw(b"")
    nodes: msgspec.Raw = msgspec.Raw(b"")
    schema: msgspec.Raw = msgspec.Raw(b"")
    format: msgspec.Raw = msgspec.Raw(b"")
    optrace: msgspec.Raw = msgspec.Raw(b"")


def unpacked(data: bytes) -> bytes:
    """The data itself, or what is in it where it is gzipped.

    Raises ``NotJsonError`` for a gzip file that is not whole, or that holds more than ``LARGEST_BYTES``.
    """
    if not data.startswith(_GZIP):
        return data
    try:
        with gzip.open(BytesIO(data)) as file:
            found = file.read(LARGEST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise NotJsonError(f"not a whole gzip file ({error})") from None
    if len(found) > LARGEST_BYTES:
        raise NotJsonError(f"a gzip file of more than {LARGEST_BYTES >> 30} GiB")
    return found


def writer_of(data: bytes) -> Writer | None:
    """What wrote an (unpacked) JSON object, by its outer fields; None for any other.

    Raises ``NotJsonError`` for what is no JSON object.
    """
    try:
        outer = msgspec.json.decode(data, type=_Outer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotJsonError(f"not a JSON object ({error})") from None
    if outer.format:
        return "optrace graph"
    if outer.traceEvents:
        return "optrace timeline" if outer.optrace else "profiler"
    return "execution trace" if outer.nodes and outer.schema else None
