"""Multi-tensor ops: one call over a list, in launches that carry tables of chunks (MultiTensorApply.cuh)."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import copy_launches, is_dense
from optrace.cost.rules.table import (
    elements_written,
    inputs_read,
    on_device,
    outputs_written,
    rule,
    streaming,
)
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import FREE, Work
from optrace.graph import OpNode, TensorMeta, tensors_in

#: Elements of a chunk, which is a block's work.
CHUNK = 65536

#: Tensors and blocks that one launch's argument table holds, by the number of lists; fewer tensors where the
#: table carries a scalar for each.
TENSORS_A_LAUNCH = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
TENSORS_WITH_SCALARS_A_LAUNCH = {**TENSORS_A_LAUNCH, 1: 96}
BLOCKS_A_LAUNCH = 320

#: Tensors whose partial norms one cleaning-up launch finishes (ForeachReduceOp.cu).
NORMS_A_LAUNCH = 512


def multi_tensor_launches(sizes: Sequence[int], depth: int, *, scalars: bool = False) -> int:
    """Launches over tensors of ``sizes`` elements: a launch goes off when its tensor or block table is full.

    A tensor whose chunks do not all fit goes on in the next launch. ``scalars``: the table has one a tensor.
    """
    limits = TENSORS_WITH_SCALARS_A_LAUNCH if scalars else TENSORS_A_LAUNCH
    limit = limits[min(max(depth, 1), 5)]
    launches = tensors = blocks = 0
    for size in sizes:
        if not size:
            continue
        tensors += 1
        # All chunks but the last: each time the table of blocks is full, the tensor is the first of the next launch.
        full, blocks = divmod(blocks - (-size // CHUNK) - 1, BLOCKS_A_LAUNCH)
        if full:
            launches += full
            tensors = 1
        blocks += 1
        if tensors == limit or blocks == BLOCKS_A_LAUNCH:
            launches += 1
            tensors = blocks = 0
    return launches + (blocks > 0)


def list_arguments(node: OpNode) -> list[tuple[TensorMeta, ...]]:
    """The tensor lists among the arguments."""
    values = (*node.args, *node.kwargs.values())
    lists = (tuple(tensors_in(value)) for value in values if isinstance(value, tuple))
    return [tensors for tensors in lists if tensors]


def takes_fast_route(lists: Sequence[Sequence[TensorMeta]]) -> bool:
    """``can_use_fast_route`` in ForeachUtils.h: lists of equal length on the device, one dtype throughout, dense,
    and at each place equal shapes and strides."""
    first = lists[0]
    return all(len(tensors) == len(first) for tensors in lists) and all(
        tensor.dtype == first[0].dtype
        and on_device(tensor)
        and tensor.shape == leader.shape
        and tensor.stride == leader.stride
        and is_dense(tensor)
        for tensors in lists
        for leader, tensor in zip(first, tensors, strict=True)
    )


POINTWISE = (
    "abs", "acos", "add", "addcdiv", "addcmul", "asin", "atan", "ceil", "clamp_max", "clamp_min", "cos", "cosh",
    "div", "erf", "erfc", "exp", "expm1", "floor", "frac", "lerp", "lgamma", "log", "log10", "log1p", "log2",
    "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "sub", "tan", "tanh", "trunc",
)  # fmt: skip


@rule(
    *(f"aten._foreach_{name}" for name in POINTWISE),
    *(f"aten._foreach_{name}_" for name in POINTWISE),
    "aten._foreach_zero_",
    "aten._foreach_copy_",
)
def pointwise_over_lists(node: OpNode, _target: Target) -> Work:
    """A pass over every element; an out-of-place form has one more list in its table. Lists that do not match
    in dtype or layout take one kernel a tensor (ForeachBinaryOpList.cu and its neighbours)."""
    lists = list_arguments(node)
    if not lists:
        return FREE
    in_place = any(node.writes)
    moves_only = node.facts.packet in ("aten._foreach_zero_", "aten._foreach_copy_")
    reads = inputs_read(node)
    if moves_only:
        written = {access.tensor.id for access in outputs_written(node)}
        reads = [access for access in reads if access.tensor.id not in written]
    kernels, memcpys = _launches(node, lists, len(lists) + (not in_place))
    return streaming(
        node,
        kernels=kernels,
        memcpys=memcpys,
        reads=reads,
        flops=0 if moves_only else elements_written(node),
        kind="foreach",
    )


def _launches(node: OpNode, lists: Sequence[Sequence[TensorMeta]], depth: int) -> tuple[int, int]:
    if takes_fast_route(lists):
        sizes = [tensor.numel for tensor in lists[0]]
        return multi_tensor_launches(sizes, depth, scalars=node.op.endswith(".ScalarList")), 0
    if node.facts.packet == "aten._foreach_copy_":
        pairs = [
            copy_launches(source, target)
            for target, source in zip(*lists, strict=True)
            if on_device(source) and on_device(target)
        ]
        across = sum(on_device(a) != on_device(b) for a, b in zip(*lists, strict=True))
        return sum(kernels for kernels, _ in pairs), sum(memcpys for _, memcpys in pairs) + across
    return sum(kernels_over(tensor.shape, tensor) for tensor in lists[0] if on_device(tensor)), 0


@rule("aten._foreach_norm", "aten._foreach_max")
def reduces_each(node: OpNode, _target: Target) -> Work:
    """Partial results are cleared, made a chunk each, and finished by one block a tensor (ForeachReduceOp.cu)."""
    lists = list_arguments(node)
    sizes = [tensor.numel for tensor in lists[0]] if lists else []
    if not sizes:
        return FREE
    each = 2 if node.facts.packet == "aten._foreach_norm" else 1
    return streaming(
        node,
        kernels=1 + multi_tensor_launches(sizes, 1) + -(-len(sizes) // NORMS_A_LAUNCH),
        flops=each * sum(sizes),
        kind="foreach",
    )


@rule("aten._amp_foreach_non_finite_check_and_unscale_")
def unscales_and_checks(node: OpNode, _target: Target) -> Work:
    """One multi-tensor pass over dense gradients (AmpKernels.cu)."""
    sizes = [tensor.numel for tensor in node.tensors("self")]
    return streaming(node, kernels=multi_tensor_launches(sizes, 1), flops=2 * sum(sizes), kind="foreach")


@rule("aten._amp_update_scale_")
def grows_or_shrinks_the_scale(node: OpNode, _target: Target) -> Work:
    """One thread, one multiplication (AmpKernels.cu)."""
    return streaming(node, flops=1)


#: Lists in the table, and FLOPs an element: fused_adam_impl.cu, fused_adamw_impl.cu, FusedSgdKernel.cu,
#: fused_adagrad_impl.cu.
FUSED = {
    "aten._fused_adamw_": (("self", "grads", "exp_avgs", "exp_avg_sqs"), 14),
    "aten._fused_adam_": (("self", "grads", "exp_avgs", "exp_avg_sqs"), 14),
    "aten._fused_sgd_": (("self", "grads", "momentum_buffer_list"), 5),
    "aten._fused_adagrad_": (("self", "grads", "state_sums"), 7),
}


@rule(*FUSED)
def fused_optimizer(node: OpNode, _target: Target) -> Work:
    """One update a chunk: parameters, gradients and states side by side."""
    names, each = FUSED[node.facts.packet]
    lists = [tensors for name in names if (tensors := node.tensors(name))]
    depth = len(lists) + bool(node.arg("amsgrad"))
    sizes = [tensor.numel for tensor in node.tensors("self")]
    return streaming(
        node, kernels=multi_tensor_launches(sizes, depth), flops=each * sum(sizes), kind="foreach"
    )
