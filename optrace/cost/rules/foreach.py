"""Multi-tensor ops: one call over a list, in launches that carry tables of chunks (MultiTensorApply.cuh)."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.cost.profiles import Target
from optrace.cost.rules.table import elements_written, inputs_read, outputs_written, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta, tensors_in

CHUNK = 65536

#: Tensors and blocks that one launch's argument table holds, by the number of lists (MultiTensorApply.cuh).
TENSORS_A_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
BLOCKS_A_LAUNCH = 320


def multi_tensor_launches(sizes: Sequence[int], depth: int) -> int:
    """Launches over tensors of ``sizes`` elements: a launch goes off when its tensor or block table is full.

    A tensor whose chunks do not all fit goes on in the next launch.
    """
    limit = TENSORS_A_LAUNCH[min(max(depth, 1), 5)]
    launches = tensors = blocks = 0
    sizes = [size for size in sizes if size]
    for position, size in enumerate(sizes):
        tensors += 1
        chunks = -(-size // CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            tables_full = (tensors == limit and last) or blocks == BLOCKS_A_LAUNCH
            if tables_full:
                launches += 1
                blocks = 0
                tensors = 0 if last else 1
            elif last and position == len(sizes) - 1:
                launches += 1
    return launches


def _lists(node: OpNode) -> list[tuple[TensorMeta, ...]]:
    """The tensor lists among the arguments."""
    values = (*node.args, *node.kwargs.values())
    lists = (tuple(tensors_in(value)) for value in values if isinstance(value, tuple))
    return [tensors for tensors in lists if tensors]


_POINTWISE = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh",
    "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2",
    "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "sub", "tan", "tanh", "trunc",
)  # fmt: skip


@rule(
    *(f"aten._foreach_{name}" for name in _POINTWISE),
    *(f"aten._foreach_{name}_" for name in _POINTWISE),
    "aten._foreach_zero_",
    "aten._foreach_copy_",
)
def pointwise_over_lists(node: OpNode, _target: Target) -> Work:
    """A pass over every element; an out-of-place form has one more list in its table."""
    lists = _lists(node)
    in_place = any(node.writes)
    depth = len(lists) + (0 if in_place else 1)
    moves_only = node.facts.packet in ("aten._foreach_zero_", "aten._foreach_copy_")
    reads = inputs_read(node)
    if moves_only:
        written = {access.tensor.id for access in outputs_written(node)}
        reads = [access for access in reads if access.tensor.id not in written]
    return streaming(
        node,
        kernels=multi_tensor_launches([t.numel for t in lists[0]], depth) if lists else 0,
        reads=reads,
        flops=0 if moves_only else elements_written(node),
        kind="foreach",
    )


@rule("aten._foreach_norm")
def norm_of_each(node: OpNode, _target: Target) -> Work:
    """Partial sums a chunk, then one kernel that finishes them (ForeachReduceOp.cu)."""
    lists = _lists(node)
    sizes = [t.numel for t in lists[0]] if lists else []
    return streaming(
        node,
        kernels=multi_tensor_launches(sizes, 1) + -(-len(sizes) // 512),
        flops=2 * sum(sizes),
        kind="foreach",
    )


@rule("aten._amp_foreach_non_finite_check_and_unscale_")
def unscales_and_checks(node: OpNode, _target: Target) -> Work:
    """One multi-tensor pass (AmpKernels.cu)."""
    sizes = [t.numel for t in _lists(node)[0]]
    return streaming(node, kernels=multi_tensor_launches(sizes, 1), flops=2 * sum(sizes), kind="foreach")
