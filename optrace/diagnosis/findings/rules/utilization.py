"""How much of the GPU's arithmetic the run reaches, and what keeps it from more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from optrace import units
from optrace.cost.device import peak_flops
from optrace.cost.work import MATRIX_KINDS
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind

#: Below this model FLOPs utilization a run is told why, unless it reaches this part of the memory bandwidth.
_LOW_MFU = 0.3
_GOOD_BANDWIDTH = 0.6
#: Matrix products take at least this part of the wall clock at peak for the utilization to say anything.
_LEAST_MFU = 0.001


@kind("low-mfu", "little of the GPU's arithmetic is used")
def low_utilization(scene: Scene) -> Iterator[Hit]:
    """One finding a run, at the call that takes most of the cause."""
    wall = scene.run.timeline.wall_us
    if not wall or not len(scene):
        return
    at_peak_us = _at_peak_us(scene)
    ideal = sum(at_peak_us)
    mfu = ideal / wall
    moved = sum(scene.hbm_bytes)
    bandwidth = moved / (scene.gpu.bandwidth_tb_s * 1e6) / wall
    if not _LEAST_MFU < mfu < _LOW_MFU or bandwidth > _GOOD_BANDWIDTH:
        return
    causes = _causes(scene, at_peak_us)
    cause = max(causes, key=lambda name: sum(causes[name].values()))
    calls = causes[cause]
    by_op: defaultdict[str, float] = defaultdict(float)
    for call, us in calls.items():
        by_op[scene.names[call]] += us
    op, most_us = max(by_op.items(), key=lambda item: item[1])
    # The call to look at first is one of the op that takes most, not whichever call is the largest.
    ranked = sorted(
        (call for call in calls if calls[call] > 0), key=lambda call: (scene.names[call] != op, -calls[call])
    )
    if not ranked:
        return  # arithmetic, but none of it on the device
    total_us = sum(calls.values())
    share = total_us / wall
    part = "most of it" if 2 * most_us > total_us else f"{units.share(most_us / total_us)} of that"
    yield Hit(
        tuple(ranked),
        f"{units.share(mfu)} of the peak arithmetic and {units.share(bandwidth)} of the memory bandwidth are used: "
        f"{units.share(share)} of the wall clock is {_WHAT[cause]}, {part} in {op}.",
        _CHANGE[cause],
    )


_WHAT = {
    "launch": "the GPU waiting for the host to launch",
    "sync": "the GPU idle after the host has waited for it",
    "bytes": "kernels that move bytes and multiply nothing",
    "products": "matrix products that run below their peak",
}
_CHANGE = {
    "launch": "a larger batch, fewer and larger ops, or a CUDA graph.",
    "sync": "take the waits out of the step.",
    "bytes": "fuse pointwise ops, norms and softmax (fused ops, torch.compile), or use lower precision.",
    "products": "larger products (batch, fused projections), bfloat16 or TF32, dimensions that are multiples of 64.",
}


def _at_peak_us(scene: Scene) -> list[float]:
    """What each call's matrix products would take at the peak."""
    found = []
    for work in scene.costs.works.distinct:
        peak = peak_flops(work, scene.gpu) if work.launches != 0 else None  # none: the CPU's arithmetic
        found.append(work.matmul_flops / peak * 1e6 if work.matmul_flops and peak else 0.0)
    by_call: list[float] = scene.costs.of_work(found).tolist()
    return by_call


def _causes(scene: Scene, at_peak_us: list[float]) -> dict[str, dict[int, float]]:
    """The wall clock that is no arithmetic at peak, by cause and call, microseconds."""
    causes: dict[str, dict[int, float]] = {name: {} for name in _WHAT}
    for call, span in enumerate(scene.run.timeline.spans):
        causes["launch"][call] = span.gap_us
        causes["sync"][call] = span.wait_us
        if scene.work(call).kind in MATRIX_KINDS:
            causes["products"][call] = max(0.0, span.exposed_us - at_peak_us[call])
        else:
            causes["bytes"][call] = span.exposed_us
    return causes
