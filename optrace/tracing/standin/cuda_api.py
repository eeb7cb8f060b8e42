# ruff: noqa: ARG001, ARG002  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""`torch.cuda` as the chosen GPU would answer it.

The functions below carry the names of those that they replace; `patches` puts each in every module of torch that
holds the original. What is only asked for its effect (synchronize, empty_cache) does nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.backends.cudnn.rnn
import torch.cuda.nvtx
import torch.cuda.profiler
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from optrace.tracing.standin import recurrent, streams
from optrace.tracing.standin.attention import RULES
from optrace.tracing.standin.device import BACKEND, active_device, names_gpu
from optrace.tracing.standin.patches import Patch

ALLOCATION_GRAIN = 512  # the caching allocator rounds requests up to this, bytes
RNG_STATE_BYTES = 16  # a Philox generator's seed and offset


# ---- the device


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    return None


def _lazy_init() -> None:
    return None


def _is_compiled() -> bool:
    return True


def _lazy_call(callable: Callable[[], None], **kwargs: Any) -> None:
    """torch queues these calls until the driver is up. It never will be."""


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


def set_device(device: Any) -> None:
    return None


def _exchange_device(device: int) -> int:
    return 0


def _maybe_exchange_device(device: int) -> int:
    return 0


def get_device_name(device: Any = None) -> str:
    return active_device().name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    return active_device().capability


def get_device_properties(device: Any = None) -> Any:
    gpu = active_device()
    major, minor = gpu.capability
    return SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.sm_count,
        L2_cache_size=gpu.l2_bytes,
        warp_size=32,
        max_threads_per_multi_processor=2048 if gpu.capability in ((8, 0), (9, 0), (10, 0)) else 1536,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448 if major >= 9 else 101376,
        shared_memory_per_multiprocessor=233472 if major >= 9 else 102400,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName=gpu.name,
        uuid="00000000-0000-0000-0000-000000000000",
    )


def get_arch_list() -> list[str]:
    major, minor = active_device().capability
    return [f"sm_{major}{minor}"]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return including_emulation or active_device().capability[0] >= 8


def is_tf32_supported() -> bool:
    return active_device().capability[0] >= 8


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    return False


def get_sync_debug_mode() -> int:
    return 0


def set_sync_debug_mode(debug_mode: int | str) -> None:
    return None


def synchronize(device: Any = None) -> None:
    return None


def _sleep(cycles: int) -> None:
    return None


def ipc_collect() -> None:
    return None


def is_current_stream_capturing() -> bool:
    return False


def cudart() -> Any:
    return SimpleNamespace(
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaMemGetInfo=lambda device: mem_get_info(device),
        cudaError=SimpleNamespace(success=0),
    )


def utilization(device: Any = None) -> int:
    return 0


# ---- memory


def memory_allocated(device: Any = None) -> int:
    """Bytes that live tensors would hold on the GPU, as the caching allocator rounds them."""
    storages: dict[int, int] = {}
    for value in gc.get_objects():
        if type(value) is FakeTensor and value.fake_device.type == BACKEND:
            storage = value.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(-(-size // ALLOCATION_GRAIN) * ALLOCATION_GRAIN for size in storages.values())


def max_memory_allocated(device: Any = None) -> int:
    """The live bytes now: the past is not kept, the recorder's graph tells the peak of a step."""
    return memory_allocated(device)


def memory_reserved(device: Any = None) -> int:
    return memory_allocated(device)


def max_memory_reserved(device: Any = None) -> int:
    return memory_allocated(device)


def mem_get_info(device: Any = None) -> tuple[int, int]:
    total = active_device().memory_bytes
    return total - memory_allocated(device), total


def memory_stats(device: Any = None) -> dict[str, Any]:
    now = memory_allocated(device)
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
    return {f"{kind}.all.{when}": now for kind in kinds for when in ("current", "peak")}


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    return f"{active_device().name}: {memory_allocated(device)} bytes allocated"


def memory_snapshot(*args: Any, **kwargs: Any) -> list[Any]:
    return []


def empty_cache() -> None:
    return None


def reset_peak_memory_stats(device: Any = None) -> None:
    return None


def reset_accumulated_memory_stats(device: Any = None) -> None:
    return None


def reset_max_memory_allocated(device: Any = None) -> None:
    return None


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    return None


# ---- random numbers


def get_rng_state(device: Any = "cuda") -> Tensor:
    """A state of the size of the GPU's. It is made beside the modes, as the driver's is, so no call is seen."""
    with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
        return torch.zeros(RNG_STATE_BYTES, dtype=torch.uint8)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state()]


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    return None


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    return None


def manual_seed(seed: int) -> None:
    return None


def manual_seed_all(seed: int) -> None:
    return None


def seed() -> None:
    return None


def seed_all() -> None:
    return None


def initial_seed() -> int:
    return 0


class _GpuGenerator(torch._C.Generator):
    """A generator that says it lives on the GPU; fake tensors draw nothing from it."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # read-only in C too
        return torch.device("cuda", 0)

    def get_state(self) -> Tensor:
        return get_rng_state()

    def set_state(self, state: Tensor) -> _GpuGenerator:
        return self

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> Any:
        return self


class _GeneratorType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(metaclass=_GeneratorType):
    """`torch.Generator`: one on the GPU is ours, one on the CPU is torch's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _GpuGenerator() if names_gpu(device) else torch._C.Generator(device)


# ---- cuDNN, NVTX


def cudnn_is_available() -> bool:
    return True


def cudnn_version() -> int:
    return RULES.cudnn


def cudnn_is_acceptable(tensor: Tensor) -> bool:
    dtypes = (torch.float16, torch.float32, torch.float64, torch.bfloat16)
    return bool(torch.backends.cudnn.enabled) and tensor.is_cuda and tensor.dtype in dtypes


def get_cudnn_mode(mode: str) -> int:
    modes = {
        "RNN_RELU": recurrent.RNN_RELU,
        "RNN_TANH": recurrent.RNN_TANH,
        "LSTM": recurrent.LSTM,
        "GRU": recurrent.GRU,
    }
    return modes[mode]


def _use_cudnn_rnn_flatten_weight() -> bool:
    return bool(torch.backends.cudnn.enabled)


def range_push(msg: str) -> int:
    return 0


def range_pop() -> int:
    return 0


def range_start(msg: str) -> int:
    return 0


def range_end(range_id: int) -> None:
    return None


def mark(msg: str) -> None:
    return None


def start() -> None:
    return None


def stop() -> None:
    return None


@contextmanager
def nvtx_range(msg: str, *args: Any, **kwargs: Any) -> Any:
    yield


def current_accelerator(check_available: bool = False) -> torch.device:
    return torch.device("cuda")


_CUDA = (
    is_available,
    is_initialized,
    init,
    _lazy_init,
    _is_compiled,
    _lazy_call,
    device_count,
    current_device,
    set_device,
    _exchange_device,
    _maybe_exchange_device,
    get_device_name,
    get_device_capability,
    get_device_properties,
    get_arch_list,
    is_bf16_supported,
    is_tf32_supported,
    can_device_access_peer,
    get_sync_debug_mode,
    set_sync_debug_mode,
    synchronize,
    _sleep,
    ipc_collect,
    is_current_stream_capturing,
    cudart,
    utilization,
    memory_allocated,
    max_memory_allocated,
    memory_reserved,
    max_memory_reserved,
    mem_get_info,
    memory_stats,
    memory_summary,
    memory_snapshot,
    empty_cache,
    reset_peak_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    set_per_process_memory_fraction,
    get_rng_state,
    get_rng_state_all,
    set_rng_state,
    set_rng_state_all,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    initial_seed,
    streams.Stream,
    streams.Event,
    streams.StreamContext,
    streams.default_stream,
    streams.current_stream,
    streams.set_stream,
    streams.stream,
)
_CUDA_MODULES = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs)

_ACCELERATOR = (
    is_available,
    device_count,
    current_accelerator,
    synchronize,
    empty_cache,
    memory_allocated,
    max_memory_allocated,
    memory_reserved,
    max_memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
    reset_accumulated_memory_stats,
    streams.current_stream,
    streams.set_stream,
)


def _another(function: Any) -> FunctionType:
    """The same function as another object: Dynamo keeps a handler for each name by the function's identity, and
    refuses one function under two names."""
    return FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


def patches() -> list[Patch]:
    """A row for each name that would ask the driver."""
    why = "there is no driver to ask"
    rows = [
        Patch(module, answer.__name__, answer, why)
        for answer in _CUDA
        for module in _CUDA_MODULES
        if module is torch.cuda or answer.__name__ in vars(module)
    ]
    rows += [
        Patch(torch.accelerator, answer.__name__, _another(answer), why)
        for answer in _ACCELERATOR
        if hasattr(torch.accelerator, answer.__name__)
    ]
    rows += [
        Patch(torch.cuda.nvtx, f.__name__, f, why)
        for f in (range_push, range_pop, range_start, range_end, mark)
    ]
    rows += [Patch(torch.cuda.nvtx, "range", nvtx_range, why)]
    rows += [Patch(torch.cuda.profiler, f.__name__, f, why) for f in (start, stop)]
    cudnn: Any = vars(torch.backends.cudnn)["m"]  # the module behind the object that torch puts in its place
    return [
        *rows,
        Patch(torch.cuda, "default_generators", (_GpuGenerator(),), why),
        Patch(torch, "Generator", Generator, "a generator for `cuda` needs the driver"),
        Patch(
            torch,
            "_use_cudnn_rnn_flatten_weight",
            _use_cudnn_rnn_flatten_weight,
            "it asks how torch was built",
        ),
        Patch(torch.backends.cuda, "is_built", _is_compiled, "it tells how torch was built"),
        Patch(cudnn, "is_available", cudnn_is_available, "it tells how torch was built"),
        Patch(cudnn, "is_acceptable", cudnn_is_acceptable, "it loads cuDNN"),
        Patch(torch.backends.cudnn.rnn, "get_cudnn_mode", get_cudnn_mode, "its constants come with cuDNN"),
        Patch(cudnn, "version", cudnn_version, "it loads cuDNN"),
    ]
