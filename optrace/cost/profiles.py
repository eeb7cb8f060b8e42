"""Hardware and host numbers: data files in ``optrace/profiles``, chosen by a loosely matched name.

Every number of the machine lives in a profile; cost rules hold none. A profile says where its numbers
come from and whether they were measured or read in a datasheet. Profiles that ``optrace calibrate`` saved on this
machine stand before those that ship; a path to a ``.toml`` names a profile of its own.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

import msgspec
from platformdirs import user_config_path

from optrace.cost.host_profile import HostProfile
from optrace.graph import DTYPE_BYTES, TraceInfo


class UnknownProfileError(ValueError):
    """No profile has this name."""


class ProfileFileError(ValueError):
    """A file that should hold a profile holds none."""


class KernelRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What kernels of a kind take: ``floor_us`` in any case; ``hbm`` and ``l2`` times what their bytes take at the
    datasheet's bandwidths; on an SM ``block_us`` a thread block and ``step_us`` a round of its loads; ``chain_us`` a
    round of one block alone, which waits for the L2, and ``miss_us`` more where it waits for HBM; ``tail_us`` a round of
    the last block."""

    floor_us: float
    hbm: float = 0.0
    l2: float = 0.0
    block_us: float = 0.0
    step_us: float = 0.0
    chain_us: float = 0.0
    miss_us: float = 0.0
    tail_us: float = 0.0


class ProductRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What products of a kind take, tile by tile: ``math`` is the share of an SM's peak that multiply-adds reach;
    ``fetch_ps`` picoseconds a byte of operands, ``store_ps`` a byte of results; ``wait_us`` a step of the depth waits
    for when its tile is alone; ``tile_us`` each tile takes besides. ``tiles`` are those to choose from. ``persistent``:
    one tile at a time on an SM. ``splits``: the depth may be shared out."""

    floor_us: float
    math: float
    fetch_ps: float
    store_ps: float
    wait_us: float
    tile_us: float
    hbm: float
    l2: float
    tiles: tuple[tuple[int, int], ...]
    persistent: bool = False
    splits: bool = False

    def itemsize(self, dtype: str) -> int:
        """Bytes of an operand's element."""
        return DTYPE_BYTES.get(dtype, 4)


#: What a complex number is made of.
REAL_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


class GpuProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One GPU. Rates are dense; ``peak_tflops`` is by dtype, with ``tf32`` for fp32 matmuls in TF32.

    ``bandwidth_efficiency`` and ``matmul_efficiency`` are the achieved shares of the datasheet rates;
    ``kernel_floor_us`` is the device time of an empty kernel. ``kernels`` and ``products`` are the rates of kernels by
    kind; a profile that has none is scaled from the one that does (``with_kernel_rates``).
    """

    key: str
    name: str
    vendor: str
    aliases: tuple[str, ...] = ()
    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    bandwidth_tb_s: float
    l2_bandwidth_tb_s: float
    peak_tflops: dict[str, float]
    bandwidth_efficiency: float
    matmul_efficiency: float
    kernel_floor_us: float
    graph_replay_us: float
    graph_launch_us: float
    source: str
    measured: bool = False
    note: str = ""
    kernels: dict[str, KernelRates] = {}
    products: dict[str, ProductRates] = {}

    def peak_flops(self, dtype: str, *, matmul: bool) -> float | None:
        """Peak FLOP/s of ``dtype`` (``tf32``: float32 in TF32), in matrix units for matmuls and in plain ones otherwise.

        A complex multiply-add, counted as two FLOPs like a real one, takes four real ones.
        """
        if matmul and dtype in REAL_PARTS:
            real = self.peak_flops(REAL_PARTS[dtype], matmul=True)
            return None if real is None else real / 4
        if not matmul:
            key = "float64" if dtype in ("float64", "complex128") else "float32"
        elif dtype == "float64" and "float64_matmul" in self.peak_tflops:
            key = "float64_matmul"
        elif dtype.startswith("float8"):
            key = "float8"
        else:
            key = dtype
        rate = self.peak_tflops.get(key)
        return None if rate is None else rate * 1e12

    def ridge_point(self, dtype: str = "bfloat16") -> float:
        """FLOPs a byte above which a matmul in ``dtype`` is bound by math and not by HBM."""
        peak = self.peak_flops(dtype, matmul=True) or self.peak_tflops["float32"] * 1e12
        return peak / (self.bandwidth_tb_s * 1e12)


#: The profile whose kernels were measured.
MEASURED_KERNELS = "h200"

#: The host that stands in for one that was not calibrated.
DEFAULT_HOST = "xeon-vm"


def with_kernel_rates(gpu: GpuProfile) -> GpuProfile:
    """The profile itself, or with the kernel rates of the measured GPU where it has none of its own (a profile that
    was saved before a kind was told apart): what an SM takes is scaled by the float32 rates of the SMs, all else is relative
    to the profile's own bandwidths and peaks, and waits stay as they are."""
    base = _measured_kernels()
    if base.kernels.keys() <= gpu.kernels.keys() and base.products.keys() <= gpu.products.keys():
        return gpu
    slower = (base.peak_tflops["float32"] / base.sm_count) / (gpu.peak_tflops["float32"] / gpu.sm_count)
    return msgspec.structs.replace(
        gpu,
        kernels={**_slowed_kernels(slower), **gpu.kernels},
        products={**base.products, **gpu.products},
    )


@cache
def _measured_kernels() -> GpuProfile:
    """The measured GPU, with each kind of kernel that is known."""
    shipped = _profiles_in(_shipped("gpu"), GpuProfile)[MEASURED_KERNELS]
    own = gpu_profiles()[MEASURED_KERNELS]
    return msgspec.structs.replace(
        own, kernels={**shipped.kernels, **own.kernels}, products={**shipped.products, **own.products}
    )


@cache
def _slowed_kernels(slower: float) -> dict[str, KernelRates]:
    """The measured kernels on SMs that take ``slower`` times as long."""
    replace = msgspec.structs.replace
    return {
        kind: replace(rates, block_us=rates.block_us * slower, step_us=rates.step_us * slower)
        for kind, rates in _measured_kernels().kernels.items()
    }


P = TypeVar("P", GpuProfile, HostProfile)


@dataclass(frozen=True, slots=True)
class Target:
    """What a cost rule may depend on: the torch version, the GPU's shape, no rates; and whether float32 products and
    convolutions may run in TF32 (torch's defaults here)."""

    torch: tuple[int, int]
    sm_count: int
    capability: tuple[int, int]
    l2_bytes: int
    tf32_products: bool = False
    tf32_convolutions: bool = True

    def product_dtype(self, dtype: str) -> str:
        """What matrix products of ``dtype`` are computed in."""
        return "tf32" if dtype == "float32" and self.tf32_products else dtype

    def convolution_dtype(self, dtype: str) -> str:
        """What convolutions of ``dtype`` are computed in."""
        return "tf32" if dtype == "float32" and self.tf32_convolutions else dtype


@dataclass(frozen=True, slots=True)
class Pricing:
    """A GPU, a host, and which of their numbers the user replaced."""

    gpu: GpuProfile
    host: HostProfile
    overrides: tuple[str, ...] = ()

    def target(self, info: TraceInfo) -> Target:
        """The ``Target`` for a program recorded so: with this torch version (``"2.13.0+cpu"``), at these precisions."""
        match = re.match(r"(\d+)\.(\d+)", info.torch)
        version = (int(match[1]), int(match[2])) if match else (2, 11)
        gpu, has_tf32 = self.gpu, "tf32" in self.gpu.peak_tflops
        return Target(
            version,
            gpu.sm_count,
            gpu.capability,
            gpu.l2_bytes,
            tf32_products=has_tf32 and info.float32_matmul in ("high", "medium"),
            tf32_convolutions=has_tf32 and info.float32_convolution != "highest",
        )


def pricing(
    gpu: str | GpuProfile = "h200",
    host: str | HostProfile | None = None,
    *,
    dispatch_us: float | None = None,
    launch_us: float | None = None,
    bandwidth_tb_s: float | None = None,
) -> Pricing:
    """Profiles, by name or themselves, with single numbers replaced where given; with no ``host``, this machine as it
    was calibrated, or else ``DEFAULT_HOST``.

    Raises ``UnknownProfileError`` for a name that matches none, ``ProfileFileError`` for a file that holds none and
    ``ValueError`` for a rate that is not positive or a time that is negative.
    """
    gpu_profile = find_gpu(gpu) if isinstance(gpu, str) else gpu
    host_profile = this_host() if host is None else find_host(host) if isinstance(host, str) else host
    overrides = []
    for name, value in (("dispatch_us", dispatch_us), ("launch_us", launch_us)):
        if value is not None:
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name} is a time in microseconds and cannot be {value}")
            host_profile = (
                host_profile.with_one_dispatch(value)
                if name == "dispatch_us"
                else msgspec.structs.replace(host_profile, launch_us=value)
            )
            overrides.append(f"{name}={value:g}")
    if bandwidth_tb_s is not None:
        if not 0 < bandwidth_tb_s < float("inf"):
            raise ValueError(f"bandwidth_tb is a rate in TB/s and cannot be {bandwidth_tb_s}")
        gpu_profile = msgspec.structs.replace(gpu_profile, bandwidth_tb_s=bandwidth_tb_s)
        overrides.append(f"bandwidth_tb={bandwidth_tb_s:g}")
    return Pricing(gpu_profile, host_profile, tuple(overrides))


def find_gpu(name: str) -> GpuProfile:
    """The profile whose key, name or alias fits ``name``: ``"NVIDIA H100 80GB HBM3"`` is ``h100``."""
    if name.endswith(".toml"):
        return _read(Path(name), GpuProfile)
    return _find(name, gpu_profiles(), "GPU", lambda p: (p.key, p.name, *p.aliases))


def find_host(name: str) -> HostProfile:
    """The host profile whose key or name fits ``name``."""
    if name.endswith(".toml"):
        return _read(Path(name), HostProfile)
    return _find(name, host_profiles(), "host", lambda p: (p.key, p.name))


def this_host() -> HostProfile:
    """The profile that was calibrated on this machine, else ``DEFAULT_HOST``."""
    return host_profiles().get(this_host_key()) or host_profiles()[DEFAULT_HOST]


def this_host_key() -> str:
    """What a profile of this machine's host is called: its network name."""
    return "-".join(_words(platform.node())) or "this-host"


def profile_path(kind: str, key: str) -> Path:
    """Where a calibrated profile of this user lies; ``kind`` is ``gpu`` or ``host``."""
    return user_config_path("optrace") / kind / f"{key}.toml"


@cache
def gpu_profiles() -> Mapping[str, GpuProfile]:
    """All GPU profiles by key."""
    return _load("gpu", GpuProfile)


@cache
def host_profiles() -> Mapping[str, HostProfile]:
    """All host profiles by key."""
    return _load("host", HostProfile)


def ships(profile: GpuProfile | HostProfile, but_for: Iterable[str] = ()) -> bool:
    """Whether each installation of this version has a profile of these numbers, ``but_for`` the fields named."""
    shipped: GpuProfile | HostProfile | None
    if isinstance(profile, GpuProfile):
        shipped = _profiles_in(_shipped("gpu"), GpuProfile).get(profile.key)
    else:
        shipped = _profiles_in(_shipped("host"), HostProfile).get(profile.key)
    if shipped is None:
        return False
    replaced = {field: getattr(profile, field) for field in but_for}
    return bool(msgspec.structs.replace(shipped, **replaced) == profile)


def _load(folder: str, kind: type[P]) -> dict[str, P]:
    """Those that ship, and over them the user's own."""
    own = user_config_path("optrace") / folder
    found = _profiles_in(_shipped(folder), kind)
    if own.is_dir():
        try:
            found |= _profiles_in(own, kind)
        except ProfileFileError as error:
            raise ProfileFileError(
                f"{error}; remove it, or let `optrace calibrate --save` write it anew"
            ) from None
    return found


def _shipped(folder: str) -> Traversable:
    return resources.files("optrace.profiles").joinpath(folder)


def _profiles_in(place: Traversable, kind: type[P]) -> dict[str, P]:
    files = sorted((file for file in place.iterdir() if file.name.endswith(".toml")), key=lambda f: f.name)
    return {profile.key: profile for profile in (_read(file, kind) for file in files)}


def _read(file: Traversable, kind: type[P]) -> P:
    try:
        return msgspec.toml.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise ProfileFileError(f"cannot read the profile {file}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProfileFileError(f"{file} is no {kind.__name__}: {error}") from None


def _find(name: str, profiles: Mapping[str, P], what: str, names: Callable[[P], tuple[str, ...]]) -> P:
    """The same letters and digits, else the spelling with most words that all stand in ``name``.

    Whole words: an L40 is no L4.
    """
    spellings = {spelling: profile for profile in profiles.values() for spelling in names(profile)}
    for spelling, profile in spellings.items():
        if "".join(_words(spelling)) == "".join(_words(name)):
            return profile
    words = set(_words(name))
    fits = [spelling for spelling in spellings if words.issuperset(_words(spelling))]
    if not fits:
        raise UnknownProfileError(f"no {what} profile fits {name!r} (one of {', '.join(sorted(profiles))})")
    return spellings[max(fits, key=lambda spelling: len(_words(spelling)))]


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())
