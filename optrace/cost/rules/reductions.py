"""Reductions to fewer elements: one FLOP an input element."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.table import elements_read, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


@rule(
    "aten.sum",
    "aten.mean",
    "aten.prod",
    "aten.amax",
    "aten.amin",
    "aten.max",
    "aten.min",
    "aten.aminmax",
    "aten.argmax",
    "aten.argmin",
    "aten.any",
    "aten.all",
    "aten.nansum",
    "aten.logsumexp",
    "aten.count_nonzero",
    "aten.trace",
)
def reduces(node: OpNode, _target: Target) -> Work:
    """One kernel that reads everything once (Reduce.cuh)."""
    return streaming(node, flops=elements_read(node), kind="reduction")


@rule(
    "aten.std",
    "aten.var",
    "aten.var_mean",
    "aten.std_mean",
    "aten.norm",
    "aten.linalg_vector_norm",
    "aten.dist",
)
def reduces_squares(node: OpNode, _target: Target) -> Work:
    """Square and add, in one pass (ReduceMomentKernel.cu, ReduceNormKernel.cu)."""
    return streaming(node, flops=2 * elements_read(node), kind="reduction")


@rule("aten.equal")
def compares_all(node: OpNode, _target: Target) -> Work:
    """Compare, reduce, bring one value to the host, which waits (TensorCompare.cpp)."""
    return streaming(
        node,
        kernels=2,
        memcpys=1,
        flops=2 * node.inputs[0].numel,
        kind="reduction",
        writes=(),
        host_wait=True,
    )


@rule(
    "aten.mse_loss",
    "aten.l1_loss",
    "aten.smooth_l1_loss",
    "aten.huber_loss",
    "aten.soft_margin_loss",
    "aten.binary_cross_entropy",
    "aten.binary_cross_entropy_backward",
)
def loss_then_reduce(node: OpNode, _target: Target) -> Work:
    """A pointwise kernel, and a reduction of its result unless ``reduction`` is none (0) (Loss.cpp)."""
    kernels = 1 if node.arg("reduction", 1) == 0 or "backward" in node.op else 2
    return streaming(node, kernels=kernels, flops=3 * node.inputs[0].numel, kind="reduction")


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def picks_log_probabilities(node: OpNode, _target: Target) -> Work:
    """Reads one value a target (NLLLoss.cu, NLLLoss2d.cu)."""
    scores, target = node.inputs[:2]
    from optrace.cost.work import Access

    reads = [
        Access(scores, min(scores.nbytes, target.numel * scores.itemsize)),
        Access(target, target.nbytes),
    ]
    return streaming(node, reads=reads, flops=target.numel, kind="reduction")


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def scatters_loss_gradient(node: OpNode, _target: Target) -> Work:
    """Zero the gradient, then write one value a target (NLLLoss.cu)."""
    return streaming(node, kernels=2, flops=node.inputs[0].numel, kind="elementwise", reads=())


@rule(
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    "aten.avg_pool1d",
    "aten.avg_pool2d",
    "aten.avg_pool3d",
    "aten._adaptive_avg_pool2d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_max_pool2d",
)
def pools(node: OpNode, _target: Target) -> Work:
    """Each input element is looked at about once a window that holds it: one FLOP an element of each window."""
    kernel = node.arg("kernel_size")
    window = 1
    if isinstance(kernel, tuple):
        for size in kernel:
            window *= size if isinstance(size, int) else 1
        if len(kernel) == 1:
            window **= 2 if "2d" in node.op else 3 if "3d" in node.op else 1
    else:
        window = max(1, node.inputs[0].numel // max(1, node.outputs[0].numel))
    return streaming(node, flops=window * node.outputs[0].numel, kind="reduction")


@rule(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.avg_pool2d_backward",
    "aten.avg_pool3d_backward",
    "aten._adaptive_avg_pool2d_backward",
    "aten.adaptive_max_pool2d_backward",
)
def unpools(node: OpNode, _target: Target) -> Work:
    return streaming(node, flops=node.inputs[0].numel, kind="elementwise")


@rule(
    "aten.upsample_nearest1d",
    "aten.upsample_nearest2d",
    "aten.upsample_nearest3d",
    "aten._upsample_nearest_exact2d",
    "aten.upsample_bilinear2d",
    "aten.upsample_bicubic2d",
    "aten.upsample_trilinear3d",
    "aten._upsample_bilinear2d_aa",
    "aten._upsample_bicubic2d_aa",
    "aten.grid_sampler_2d",
    "aten.grid_sampler_3d",
)
def resamples(node: OpNode, _target: Target) -> Work:
    """Each output element blends its neighbours: 1, 8 (bilinear), 16 (trilinear), 40 (bicubic) FLOPs (UpSample*.cu)."""
    name = node.facts.packet
    each = 1 if "nearest" in name else 40 if "bicubic" in name else 16 if "3d" in name else 8
    return streaming(node, flops=each * node.outputs[0].numel, kind="gather")
