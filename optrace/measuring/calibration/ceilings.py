"""What the GPU does at its best, and what starting it costs: bandwidths, matrix rates, empty kernels, graph replays."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from optrace.measuring.launches import LAUNCH_CATEGORIES, profiling, trace_events

#: A copy moves each byte twice: it is read and written.
_BOTH_WAYS = 2
#: Sizes of copies, bytes, and of the sets that are read again and again to see where the L2 ends.
_COPIES = tuple(1 << power for power in (20, 22, 24, 26, 28, 29))
#: Working sets in eighths of the L2, and how often each is read in a row.
_L2_EIGHTHS = (1, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
_READS = 20
#: Blocks of the captured network (five launches each), its rows and its width; how often each graph is replayed.
_GRAPHS, _ROWS, _WIDTH, _REPLAYS = (4, 16, 48, 96), 512, 1024, 15
#: Cycles that the device sleeps before a timing: about 0.2 ms.
_AHEAD_CYCLES = 400_000
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bandwidths in TB/s, matrix rates in TFLOP/s, times in microseconds. ``copies``: bandwidth by bytes of a copy.
    ``l2_bytes``: what can be read again from the L2 at half the gain over HBM. ``matrix``: by dtype and shape."""

    copies: Mapping[int, float]
    l2_tb_s: float | None
    l2_bytes: int | None
    matrix: Mapping[str, float]
    launch_period_us: float
    graph_replay_us: float | None
    graph_launch_us: float | None

    @property
    def hbm_tb_s(self) -> float:
        """The best that a copy too large for the L2 reached."""
        return max(self.copies[size] for size in sorted(self.copies)[-2:])


def measure_ceilings(l2_bytes: int) -> Ceilings:
    """A few seconds. ``l2_bytes``: the L2 as torch reports it."""
    free = torch.cuda.mem_get_info()[0]
    copies = {size: _copy_tb_s(size) for size in _COPIES if 4 * size < free or size == _COPIES[0]}
    l2_tb_s, capacity = _l2(l2_bytes)
    return Ceilings(copies, l2_tb_s, capacity, _matrix(), _launch_period(), *_graph_costs())


def _device_us(call: Callable[[], object], repeats: int = 10, rounds: int = 3) -> float:
    """Device time of a call, the best of ``rounds`` of many back to back."""
    call()
    best = float("inf")
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch
        torch.cuda.synchronize()
        # The host runs ahead, so that the device waits for nothing between the events.
        torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) * 1e3 / repeats)
    return best


def _copy_tb_s(nbytes: int) -> float:
    """Copies between pairs that are not in the L2 any more when their turn comes again."""
    pairs = max(1, min(64, (1 << 30) // (2 * nbytes)))
    sources = [torch.ones(nbytes // 4, device="cuda") for _ in range(pairs)]
    targets = [torch.empty_like(source) for source in sources]

    def copy_all() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)

    graph = _captured(copy_all)
    us = _device_us(graph.replay if graph else copy_all, repeats=2) / pairs
    return _BOTH_WAYS * nbytes / us / 1e6


def _l2(l2_bytes: int) -> tuple[float | None, int | None]:
    """Bandwidth of reading again what was just read, and up to where it lasts: the working set at which it has fallen
    half of the way to that of HBM."""
    if not l2_bytes:
        return None, None
    times = {eighths: _read_us(l2_bytes * eighths // 8) for eighths in _L2_EIGHTHS}
    # Against a small set: what a kernel takes in any case falls out.
    least, *others = _L2_EIGHTHS
    rates = {
        eighths: l2_bytes * (eighths - least) / 8 / (times[eighths] - times[least]) / 1e6
        for eighths in others
        if times[eighths] > times[least]
    }
    if others[-1] not in rates:
        return None, None
    best, last = max(rates.values()), rates[others[-1]]
    if best < 1.15 * last:
        return None, None
    inside = [eighths for eighths, rate in rates.items() if rate >= (best + last) / 2]
    return best, l2_bytes * max(inside) // 8


def _read_us(nbytes: int) -> float:
    """Device time of reading a set of so many bytes again, just after it was read."""
    x, y = torch.ones(nbytes // 4, device="cuda"), torch.ones((), device="cuda")

    def read() -> torch.Tensor:
        return torch.sum(x, dim=0, out=y)

    graph = _captured(lambda: [read() for _ in range(_READS)])
    return _device_us(graph.replay, repeats=2) / _READS if graph else _device_us(read, repeats=2 * _READS)


def _captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph | None:
    """The call as a CUDA graph: the host stays out of what is timed. None where it cannot be captured."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        return None
    return graph


def _matrix() -> dict[str, float]:
    """TFLOP/s of one square product and of one with few rows, by dtype."""
    found: dict[str, float] = {}
    allowed = torch.backends.cuda.matmul.allow_tf32
    for name, side in (("float32", 2048), ("tf32", 4096), ("bfloat16", 8192), ("float16", 8192)):
        dtype = torch.float32 if name == "tf32" else _DTYPES[name]
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        try:
            for rows, what in ((side, "square"), (16, "16 rows")):
                left = torch.randn(rows, side, device="cuda", dtype=dtype)
                right = torch.randn(side, side, device="cuda", dtype=dtype)
                us = _device_us(lambda left=left, right=right: torch.mm(left, right))  # type: ignore[misc]  # defaults
                found[f"{name}, {what}"] = 2 * rows * side * side / us / 1e6
        except RuntimeError:
            continue  # a dtype that this GPU does not multiply
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
    return found


def _launch_period(launches: int = 500) -> float:
    """Microseconds between launches that the host makes one after the other, the best of a few runs."""
    x = torch.ones(64, device="cuda")

    def run() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(launches):
            x.add_(1.0)
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / launches

    return min(run() for _ in range(5))


def _graph_costs() -> tuple[float | None, float | None]:
    """What replaying a graph and waiting for it costs beyond the device time of the same launches in eager, and what each
    launch in it adds: a straight line through networks of several depths. None where nothing can be captured."""
    launches: list[float] = []
    rest_us: list[float] = []
    with torch.no_grad():
        for blocks in _GRAPHS:
            network = _network(blocks)
            graph = _captured(network)
            if graph is None:
                return None, None
            durations = _durations_us(network)
            launches.append(len(durations))
            rest_us.append(statistics.median(_replay_us(graph) for _ in range(_REPLAYS)) - sum(durations))
    slope, intercept = statistics.linear_regression(launches, rest_us)
    return round(max(intercept, 0.0), 1), round(max(slope, 0.0), 2)


def _network(blocks: int) -> Callable[[], torch.Tensor]:
    """``x + gelu(layer_norm(x) @ w) @ v``, again and again: kernels of a few microseconds, as models have them."""
    x = torch.randn(_ROWS, _WIDTH, device="cuda", dtype=torch.bfloat16)
    w, v = (torch.randn(_WIDTH, _WIDTH, device="cuda", dtype=torch.bfloat16) / _WIDTH**0.5 for _ in range(2))

    def run() -> torch.Tensor:
        y = x
        for _ in range(blocks):
            y = y + F.gelu(F.layer_norm(y, (_WIDTH,)) @ w) @ v
        return y

    return run


def _durations_us(call: Callable[[], object]) -> list[float]:
    """Of each launch of a call in eager, by the profiler: the shorter of two runs."""
    runs: list[list[float]] = []
    for _ in range(2):
        torch.cuda.synchronize()
        with profiling() as profiler:
            call()
            torch.cuda.synchronize()
        runs.append(
            [event["dur"] for event in trace_events(profiler) if event.get("cat") in LAUNCH_CATEGORIES]
        )
    return min(runs, key=sum)


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    """From an empty queue to the end of the replay."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6
