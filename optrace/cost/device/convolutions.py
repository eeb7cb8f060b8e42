"""Convolutions: copies between layouts around an implicit product (cuDNN), or a thread an output (depthwise)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.device.kernel import MEMSET, SMALL, Kernel, Launch, Product, launches
from optrace.cost.device.reductions import reducing
from optrace.cost.device.streams import STRIDED_BLOCK, copy, over, pieces
from optrace.cost.profiles import Target
from optrace.cost.rules.convolution import forward_pass, gradient_pass, is_depthwise_native, relaid_tensors
from optrace.cost.rules.implicit_gemm import (
    WINOGRAD_POINTS,
    WINOGRAD_TILE,
    ConvPass,
    PassPlan,
    plan,
    plan_data_gradient,
    plan_weight_gradient,
    runs_directly,
    writes_channels_first,
)
from optrace.cost.rules.layouts import contiguous
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta

#: Windows up to this wide are loaded as boxes of pixels; wider ones are gathered, and more slowly where they are dilated.
DIRECT_WINDOW, DILATED_SLOWER = 3, 8
#: Taps x channels from which another tile is taken for them.
DEEP_FULL = 4000
#: Results from which a direct kernel takes tiles of as many, by 256 pixels, and such tiles from which it does.
WIDE_OUTPUTS, WIDE_TILES = 64, 132
#: Channels up to which cuDNN has kernels that gather an image's pixels one by one.
FEW_CHANNELS = 8


def _layout(tensor: TensorMeta, *, back: bool = False) -> Kernel:
    """cuDNN's copy to channels last, or ``back``: tiles of 32 channels by 32 pixels. Back, rows of pixels that are no
    multiple of 16 bytes start in the middle of a sector."""
    batch, channels = tensor.shape[:2]
    plane = math.prod(tensor.shape[2:])
    tiles = batch * math.ceil(channels / 32) * math.ceil(plane / 32)
    kind = "layout_back" if back else "layout"
    if tensor.itemsize < 4:
        kind += "_half"
    elif back and plane * tensor.itemsize % 16:
        kind += "_odd"
    return Kernel(kind, 2.0 * tensor.nbytes, tiles, 1)


def _transform(tensor: TensorMeta, growth: float) -> Kernel:
    """Winograd's transform of a tensor into ``growth`` times its size, or back."""
    return Kernel("strided", (1 + growth) * tensor.nbytes, tensor.numel / STRIDED_BLOCK, growth)


def _family(convolution: ConvPass, made: PassPlan, target: Target) -> str:
    if convolution.channels_last:
        return "conv_last"
    if convolution.groups > 1:
        return "conv_grouped"
    if made.copies_result:
        return "conv_transposed" if convolution.transposed else "conv"
    if convolution.pointwise:
        return "conv_pointwise"
    if runs_directly(convolution, target):
        return "conv_direct"
    if writes_channels_first(convolution, target):
        return "conv_first"
    return "conv"


def _main(convolution: ConvPass, family: str, nbytes: float, dtype: str, result: TensorMeta) -> Product:
    """``dtype``: what it is computed in; ``result``: what the pass makes."""
    rows = convolution.pixels
    images = convolution.pixels / max(1, convolution.plane)
    if family == "conv_pointwise" and convolution.is_half:
        family = "warp_specialized"  # cuBLAS's kernels
    if family == "conv_pointwise" and convolution.plane == 1:
        family = "conv_pixel"
    if family in ("conv_pointwise", "warp_specialized") and convolution.plane > 1:
        return Product(
            family,
            dtype,
            convolution.outputs,
            convolution.plane,
            convolution.inputs,
            images,
            nbytes,
        )
    depth = convolution.taps * _padded(convolution, family)
    if family == "conv" and convolution.inputs <= FEW_CHANNELS:
        family = "conv_image_3d" if len(convolution.window) == 3 else "conv_image"
    wide = convolution.outputs >= WIDE_OUTPUTS and convolution.tiles(256, 64) >= WIDE_TILES
    if family == "conv_direct" and convolution.inputs >= FEW_CHANNELS and wide:
        family = "conv_direct_wide"
    if convolution.is_half and family in ("conv", "conv_transposed"):
        family += "_half"
    elif family == "conv_transposed" and len(convolution.window) == 3:
        family, depth = _volume_gradient(convolution, depth)
        rows = result.numel // max(1, result.shape[1])
    if family.startswith("conv_direct"):
        # On the plain units, half precision in float32 too (``implicit_convolve_sgemm``).
        dtype = "float32" if convolution.is_half else convolution.dtype
    return Product(family, dtype, rows, convolution.outputs, depth, convolution.groups, nbytes)


def _volume_gradient(convolution: ConvPass, depth: int) -> tuple[str, int]:
    """The kind of kernel for a data gradient in three dimensions, and the depth that it walks. Read off kernel names and
    times of 182 such products one by one: strided ones are taken apart by what the strides leave out; of a convolution
    without padding (the "full" one) cuDNN takes tiles that are too large, and slow; windows wider than three gather their
    pixels by an index, dilated ones an order slower."""
    gathered = convolution.strided or max(convolution.window) > DIRECT_WINDOW
    if convolution.dilated and gathered:
        depth *= DILATED_SLOWER
    if convolution.strided:
        return "conv_transposed_3d_strided", math.ceil(depth / convolution.skipped)
    if not convolution.unpadded:
        return "conv_transposed_3d", depth
    if not gathered:
        return "conv_full_3d", depth
    return "conv_full_3d_deep" if convolution.depth >= DEEP_FULL else "conv_full_3d_wide", depth


def _padded(convolution: ConvPass, family: str) -> int:
    """Channels that a tap multiplies: they fill whole slices of k, 128 bytes in Hopper's kernels; an image's few are
    gathered four or eight at a time."""
    few = convolution.inputs <= FEW_CHANNELS and not convolution.transposed
    size = 1 if family == "conv_direct" else 4 if few else 64 if convolution.is_half else 32
    return math.ceil(convolution.inputs / size) * size


def _by_group(convolution: ConvPass, made: PassPlan, nbytes: float) -> list[Launch] | None:
    """Grouped kernels that are no implicit product: a direct one a group, or a thread an output."""
    if convolution.groups > 1 and made.kernels == convolution.groups:
        one = Product(
            "conv_direct", convolution.dtype, convolution.pixels, convolution.outputs, convolution.depth, 1,
            nbytes / convolution.groups,
        )  # fmt: skip
        return [one] * convolution.groups
    outputs = convolution.pixels * convolution.outputs * convolution.groups
    if convolution.channels_last and convolution.inputs == convolution.outputs == 1:
        return [Kernel("depthwise_last", nbytes, outputs / 1024, convolution.taps)]
    if convolution.groups > 1 and made.kernels == 1 and not convolution.channels_last:
        return [Kernel("conv_grouped_direct", nbytes, outputs / 1024, convolution.depth)]
    return None


def _pass(
    convolution: ConvPass,
    made: PassPlan,
    family: str,
    data: TensorMeta,
    weights: TensorMeta,
    result: TensorMeta,
    target: Target,
) -> list[Launch]:
    nbytes = float(data.nbytes + weights.nbytes + result.nbytes)
    sources = [(data, made.copies_data), (weights, made.copies_weights)]
    if convolution.transposed:
        sources.reverse()
    before = [_layout(tensor) for tensor, copied in sources if copied]
    after = [_layout(result, back=True)] if made.copies_result else []
    apart = _by_group(convolution, made, nbytes)
    if apart is not None:
        return [*[MEMSET] * made.memsets, *apart]
    spare = made.kernels - len(before) - len(after) - 1
    main = _main(convolution, family, nbytes, target.convolution_dtype(convolution.dtype), result)
    if made.splits:
        main = replace(main, split=True)
    return [*before, *[SMALL] * spare, *[MEMSET] * made.memsets, main, *after]


@launches("aten.convolution", "aten._convolution", "aten.cudnn_convolution", "aten.convolution_overrideable")
def convolves(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    data, weight, result = node.inputs[0], node.inputs[1], node.outputs[0]
    if not work.launches:
        return []
    if is_depthwise_native(node, data, weight):
        taps = math.prod(weight.shape[2:])
        # The kernel is compiled for square windows of one, three and five (DepthwiseConv2d.cu).
        known = len(set(weight.shape[2:])) == 1 and weight.shape[2] in (1, 3, 5)
        kind = "depthwise" if known else "depthwise_any"
        return [Kernel(kind, float(work.tensor_bytes), result.numel / 1024, taps)]
    forward = forward_pass(node, data, weight, result)
    made = plan(forward, target)
    bias: list[Launch] = []
    if node.arg("bias") is not None:
        # A vector along the channels, broadcast over all else.
        ones = (1,) * (len(result.shape) - 2)
        vector = replace(node.tensor("bias"), shape=(result.shape[1], *ones), stride=(1, *ones))
        bias = pieces(over(result.shape, result, vector), kernels_over(result.shape, result))
    return [
        *(copy(tensor, contiguous(tensor)) for tensor in relaid_tensors(data, weight)),
        *_pass(forward, made, _family(forward, made, target), data, weight, result, target),
        *bias,
    ]


@launches("aten.convolution_backward", "aten.convolution_backward_overrideable")
def convolves_backward(node: OpNode, _work: Work, target: Target) -> Sequence[Launch]:
    gradient, data, weight = node.inputs[:3]
    wanted = node.arg("output_mask", (True, True, True))
    assert isinstance(wanted, tuple)
    found: list[Launch] = []
    if is_depthwise_native(node, data, weight):
        taps = math.prod(weight.shape[2:])
        if wanted[0]:
            found.append(
                Kernel("depthwise_backward", float(gradient.nbytes + data.nbytes), data.numel / 1024, taps)
            )
        if wanted[1]:
            found.append(
                Kernel("depthwise_weights", float(gradient.nbytes + data.nbytes), gradient.numel / 1024, taps)
            )
    else:
        forward = forward_pass(node, data, weight, gradient)
        found.extend(copy(tensor, contiguous(tensor)) for tensor in relaid_tensors(data, weight, gradient))
        if wanted[0]:
            backward = gradient_pass(forward, data)
            made = plan_data_gradient(backward, target)
            found.extend(
                _pass(backward, made, _family(backward, made, target), gradient, weight, data, target)
            )
        if wanted[1]:
            found.extend(_weight_gradient(forward, data, gradient, weight, target))
    if wanted[2]:
        found.extend(reducing(gradient, (0, *range(2, len(gradient.shape))), target))
    return found


def _weight_gradient(
    forward: ConvPass, data: TensorMeta, gradient: TensorMeta, weight: TensorMeta, target: Target
) -> list[Launch]:
    made = plan_weight_gradient(forward, target)
    nbytes = float(gradient.nbytes + data.nbytes + weight.nbytes)
    if made.winograd:
        # 6 x 6 transformed values for each 4 x 4 pixels, which many blocks make, and for each 3 x 3 weights.
        transformed = [_transform(tensor, WINOGRAD_POINTS / WINOGRAD_TILE) for tensor in (data, gradient)]
        tiles = forward.pixels / WINOGRAD_TILE
        main = Product("simt_nt", data.dtype, forward.outputs, forward.inputs, tiles, WINOGRAD_POINTS, nbytes)
        return [*transformed, main, _transform(weight, WINOGRAD_POINTS / forward.taps)]
    copies = [_layout(t) for t, c in ((data, made.copies_data), (gradient, made.copies_weights)) if c]
    after = [_layout(weight, back=True)] if made.copies_result else []
    main = Product(
        "conv_weights",
        target.convolution_dtype(data.dtype),
        forward.outputs,
        forward.depth,
        forward.pixels,
        forward.groups,
        nbytes,
    )
    spare = made.kernels - len(copies) - len(after) - 1
    return [*copies, *[SMALL] * spare, *[MEMSET] * made.memsets, main, *after]
