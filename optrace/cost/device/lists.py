"""Multi-tensor kernels: 512 threads a chunk, at most 320 chunks a launch (MultiTensorApply.cuh)."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.cost.device.kernel import SMALL, Kernel, Launch, launches
from optrace.cost.profiles import Target
from optrace.cost.rules.foreach import CHUNK, FUSED, POINTWISE, list_arguments, takes_fast_route
from optrace.cost.work import Work
from optrace.graph import OpNode

#: What walking a chunk takes, and dividing or taking roots besides, in passes over a list.
WALK, DIVISION = 3, 3


@launches(
    *(f"aten._foreach_{name}" for name in POINTWISE),
    *(f"aten._foreach_{name}_" for name in POINTWISE),
    "aten._foreach_zero_",
    "aten._foreach_copy_",
    "aten._amp_foreach_non_finite_check_and_unscale_",
    *FUSED,
)
def over_lists(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    lists = list_arguments(node)
    count = max(1, work.launches or 1)
    sizes = [tensor.numel for tensor in lists[0]] if lists else []
    nbytes = float(work.tensor_bytes)
    if not lists or not (takes_fast_route(lists) or node.facts.packet in FUSED):
        return [Kernel("vectorized", nbytes / count)] * count
    chunks = sum(-(-size // CHUNK) for size in sizes)
    kind = "multi_tensor_fused" if node.facts.packet in FUSED else "multi_tensor"
    # How long the longest chunk of a launch takes: a chunk is a block's, which walks all lists at once.
    longest = min(CHUNK, max(sizes, default=0)) / CHUNK
    work_each = len(lists) + WALK + (DIVISION if _divides(node) else 0)
    return [Kernel(kind, nbytes / count, chunks / count, longest * work_each)] * count


def _divides(node: OpNode) -> bool:
    return any(word in node.facts.packet for word in ("div", "sqrt", "reciprocal"))


@launches("aten._foreach_norm", "aten._foreach_max")
def norms(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    lists = list_arguments(node)
    sizes = [tensor.numel for tensor in lists[0]] if lists else []
    chunks = sum(-(-size // CHUNK) for size in sizes)
    count = max(1, (work.launches or 3) - 2)
    longest = min(CHUNK, max(sizes, default=0)) / CHUNK
    one = Kernel("multi_tensor", float(work.tensor_bytes) / count, chunks / count, longest * (1 + WALK))
    return [SMALL, *[one] * count, SMALL]
