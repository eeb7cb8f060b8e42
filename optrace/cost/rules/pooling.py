"""Pooling and resampling: windows of an image, forward and backward."""

from __future__ import annotations

import math

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import (
    contiguous_copies,
    contiguous_kernels,
    is_channels_last,
)
from optrace.cost.rules.table import rule, streaming, whole
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import Access, Pass, Work
from optrace.graph import OpNode, TensorMeta

#: Blocks along z that one launch of the 3-d pooling kernels takes (AveragePool3d.cu, DilatedMaxPool3d.cu).
PLANES_A_LAUNCH = 65535


def _window(node: OpNode) -> int:
    """Elements of one window, by kernel size or, where windows adapt, by the ratio of sizes."""
    kernel = node.arg("kernel_size")
    rank = 3 if "3d" in node.op else 2 if "2d" in node.op else 1
    if isinstance(kernel, int):
        return math.prod([kernel] * rank)
    if isinstance(kernel, tuple):
        sizes = [size for size in kernel if isinstance(size, int)]
        return math.prod(sizes * rank if len(sizes) == 1 else sizes)
    image, windows = sorted((node.inputs[0].numel, node.outputs[0].numel), reverse=True)
    return max(1, image // max(1, windows))


def _to_copy(tensor: TensorMeta) -> tuple[TensorMeta, ...]:
    """The tensor, if the kernel takes a contiguous one and it has neither layout that counts as one."""
    return () if tensor.is_contiguous or is_channels_last(tensor) else (tensor,)


def _launches_3d(output: TensorMeta) -> int:
    return -(-math.prod(output.shape[:-2]) // PLANES_A_LAUNCH)


@rule("aten.max_pool2d_with_indices", "aten.avg_pool2d", "aten.adaptive_max_pool2d")
def pools_2d(node: OpNode, _target: Target) -> Work:
    """One kernel, one FLOP an element of each window; a strided input is copied first (DilatedMaxPool2d.cu,
    AveragePool2d.cu)."""
    copied = _to_copy(node.inputs[0])
    return streaming(
        node,
        kernels=1 + contiguous_kernels(*copied),
        flops=_window(node) * node.outputs[0].numel,
        kind="reduction",
        scratch=contiguous_copies(*copied),
    )


@rule("aten.avg_pool1d", "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", "aten.adaptive_max_pool3d")
def pools_strided(node: OpNode, _target: Target) -> Work:
    """One kernel that follows the input's strides (AdaptiveAveragePooling.cu)."""
    return streaming(node, flops=_window(node) * node.outputs[0].numel, kind="reduction")


@rule("aten.max_pool3d_with_indices", "aten.avg_pool3d")
def pools_3d(node: OpNode, _target: Target) -> Work:
    """Launches of at most 65,535 output planes (DilatedMaxPool3d.cu, AveragePool3d.cu)."""
    copied = _to_copy(node.inputs[0])
    return streaming(
        node,
        kernels=_launches_3d(node.outputs[0]) + contiguous_kernels(*copied),
        flops=_window(node) * node.outputs[0].numel,
        kind="reduction",
        scratch=contiguous_copies(*copied),
    )


@rule("aten.avg_pool2d_backward", "aten.upsample_nearest1d_backward", "aten.upsample_nearest2d_backward")
@rule("aten.upsample_nearest3d_backward", "aten._upsample_nearest_exact1d_backward")
@rule("aten._upsample_nearest_exact2d_backward", "aten._upsample_nearest_exact3d_backward")
def gathers_gradients(node: OpNode, _target: Target) -> Work:
    """Each input element collects the windows that hold it, in one kernel (AveragePool2d.cu, UpSampleNearest2d.cu)."""
    copied = _to_copy(node.inputs[0])
    return streaming(
        node,
        kernels=1 + contiguous_kernels(*copied),
        flops=_window(node) * node.inputs[0].numel if "pool" in node.op else node.inputs[0].numel,
        kind="elementwise",
        scratch=contiguous_copies(*copied),
    )


#: FLOPs to blend one output element: weights and multiply-adds over its neighbours.
_BLEND = {"nearest": 1, "linear1d": 4, "bilinear": 8, "trilinear": 16, "bicubic": 40}


def _blend(name: str) -> int:
    return next((flops for kind, flops in _BLEND.items() if kind in name), 8 if "2d" in name else 16)


@rule(
    "aten.max_pool2d_with_indices_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten._adaptive_avg_pool2d_backward",
    "aten._adaptive_avg_pool3d_backward",
    "aten.upsample_linear1d_backward",
    "aten.upsample_bilinear2d_backward",
    "aten.upsample_bicubic2d_backward",
    "aten.upsample_trilinear3d_backward",
    "aten._upsample_bilinear2d_aa_backward",
    "aten._upsample_bicubic2d_aa_backward",
)
def scatters_gradients(node: OpNode, _target: Target) -> Work:
    """Zero the gradient, then add to it with atomics, or store what max pooling gathered (DilatedMaxPool2d.cu, AdaptiveAveragePooling.cu,
    UpSample*.cu). Max pooling reads indices instead of the input."""
    gradient, result = node.inputs[0], node.outputs[0]
    copied = _to_copy(gradient)
    name = node.facts.packet
    each = _blend(name) if "upsample" in name else 1 if "max" in name else _window(node)
    unread = node.arg("self")
    reads = [
        access
        for access in streaming(node).reads
        if "pool" not in name or not isinstance(unread, TensorMeta) or access.tensor.id != unread.id
    ]
    return streaming(
        node,
        kernels=kernels_over(result.shape, result) + 1 + contiguous_kernels(*copied),
        reads=reads,
        flops=each * gradient.numel,
        kind="elementwise",
        scratch=contiguous_copies(*copied),
        passes=_zeroed_first(reads, whole(result), copied, adds="max_pool2d" not in name),
    )


def _zeroed_first(
    reads: list[Access], result: Access, copied: tuple[TensorMeta, ...], *, adds: bool
) -> tuple[Pass, ...]:
    """Operands that are copied first, zeros, and the pass that ``adds`` to them or stores over them."""
    places = {tensor.id: number for number, tensor in enumerate(copied)}
    copies = tuple(Pass((whole(tensor),), (number,)) for number, tensor in enumerate(copied))
    sources = tuple(places.get(access.tensor.id, access) for access in reads)
    return (*copies, Pass((), (result,)), Pass((*sources, *((result,) if adds else ())), (result,)))


@rule("aten.max_pool3d_with_indices_backward", "aten.avg_pool3d_backward")
@rule("aten.adaptive_max_pool3d_backward")
def scatters_gradients_3d(node: OpNode, _target: Target) -> Work:
    """Zero the gradient, then launches of at most 65,535 planes (DilatedMaxPool3d.cu, AveragePool3d.cu)."""
    gradient, result = node.inputs[0], node.outputs[0]
    copied = _to_copy(gradient)
    return streaming(
        node,
        kernels=kernels_over(result.shape, result) + _launches_3d(gradient) + contiguous_kernels(*copied),
        flops=(1 if "max" in node.op else _window(node)) * gradient.numel,
        kind="elementwise",
        scratch=contiguous_copies(*copied),
    )


@rule(
    "aten.upsample_nearest1d",
    "aten.upsample_nearest2d",
    "aten.upsample_nearest3d",
    "aten._upsample_nearest_exact1d",
    "aten._upsample_nearest_exact2d",
    "aten._upsample_nearest_exact3d",
    "aten.upsample_linear1d",
    "aten.upsample_bilinear2d",
    "aten.upsample_bicubic2d",
    "aten.upsample_trilinear3d",
    "aten._upsample_bilinear2d_aa",
    "aten._upsample_bicubic2d_aa",
    "aten.grid_sampler_2d",
    "aten.grid_sampler_3d",
)
def resamples(node: OpNode, _target: Target) -> Work:
    """Each output element blends its neighbours in one kernel (UpSample*.cu, GridSampler.cu)."""
    return streaming(node, flops=_blend(node.facts.packet) * node.outputs[0].numel, kind="gather")


@rule("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def resamples_backward(node: OpNode, _target: Target) -> Work:
    """Zero the image's gradient if it is wanted, then one kernel for both gradients (GridSampler.cpp)."""
    mask = node.arg("output_mask")
    image_wanted = not isinstance(mask, tuple) or bool(mask[0])
    return streaming(
        node,
        kernels=1 + image_wanted,
        flops=2 * _blend(node.facts.packet) * node.inputs[0].numel,
        kind="gather",
    )


@rule("aten.max_unpool2d", "aten.max_unpool3d")
def puts_maxima_back(node: OpNode, _target: Target) -> Work:
    """Zeros, then each value to its place; volumes in launches of at most 65,535 planes (MaxUnpooling.cu)."""
    maxima, places, result = *node.inputs[:2], node.outputs[0]
    launches = _launches_3d(maxima) if node.facts.packet == "aten.max_unpool3d" else 1
    return streaming(
        node,
        kernels=kernels_over(result.shape, result) + launches + contiguous_kernels(maxima, places),
        kind="gather",
        scratch=contiguous_copies(maxima, places),
    )


@rule("aten.im2col")
def unfolds(node: OpNode, _target: Target) -> Work:
    """One kernel a sample (Im2Col.cu)."""
    image = node.inputs[0]
    samples = image.shape[0] if len(image.shape) == 4 else 1
    return streaming(node, kernels=samples + contiguous_kernels(image), kind="gather")


@rule("aten.col2im")
def folds(node: OpNode, _target: Target) -> Work:
    """One kernel over the batch, which adds up overlapping windows (Col2Im.cu)."""
    columns = node.inputs[0]
    return streaming(node, kernels=1 + contiguous_kernels(columns), flops=columns.numel, kind="gather")
