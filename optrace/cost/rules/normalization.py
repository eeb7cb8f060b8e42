"""Layer, batch, group and RMS norms, and softmax: a few FLOPs an element in one to four kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import (
    contiguous,
    contiguous_copies,
    contiguous_kernels,
    copies_as_memcpy,
    fits_32_bit_index,
    is_channels_last,
    suggests_channels_last,
)
from optrace.cost.rules.reduce_config import Reduction, reduction, threads_per_sm
from optrace.cost.rules.reductions import sums
from optrace.cost.rules.table import on_device, rule, streaming, whole
from optrace.cost.rules.tensor_iterator import kernels_over, result_is_contiguous
from optrace.cost.work import Access, Work
from optrace.graph import OpNode, TensorMeta


def _again(
    tensor: TensorMeta, rows: int, threads_a_row: int, target: Target, *, places: float = 1.0
) -> tuple[Access, ...]:
    """A second pass of each block over its row: from HBM if the rows in flight do not fit the L2, in which each takes
    ``places``."""
    in_flight = min(rows, target.sm_count * max(1, threads_per_sm(target.capability) // threads_a_row))
    held = places * tensor.nbytes / max(1, rows) * in_flight
    return (whole(tensor),) if held > target.l2_bytes else ()


# Softmax -------------------------------------------------------------------------------------------------

#: Rows up to this many elements and bytes are held in a warp's registers (``host_softmax`` in SoftMax.cu).
PERSISTENT_ELEMENTS = 1024
PERSISTENT_BYTES = 4096
#: Threads of a block that holds a longer row (``SoftMaxForward_getBlockSize``).
SOFTMAX_BLOCK = 1024


def _passes_again(source: TensorMeta, dim: int, target: Target, times: int) -> tuple[Access, ...]:
    """What softmax reads after its first pass over a row, where a row is too long for a warp's registers."""
    row = source.shape[dim] if source.shape else 1
    inner = math.prod(source.shape[dim + 1 :])
    if inner == 1 and row <= PERSISTENT_ELEMENTS and row * source.itemsize <= PERSISTENT_BYTES:
        return ()
    rows = source.numel // max(1, row * inner) if inner > 1 else source.numel // max(1, row)
    return tuple(
        replace(access, nbytes=times * access.nbytes)
        for access in _again(source, rows, SOFTMAX_BLOCK, target)
    )


def _softmax_dim(node: OpNode, rank: int) -> int:
    dim = node.arg("dim", -1)
    return dim % rank if isinstance(dim, int) and rank else 0


@rule("aten._softmax", "aten._log_softmax")
def softmax(node: OpNode, target: Target) -> Work:
    """Max, subtract, exp, add, divide: 5 FLOPs an element, in one kernel over a contiguous input (SoftMax.cu)."""
    source = node.inputs[0]
    dim = _softmax_dim(node, len(source.shape))
    return streaming(
        node,
        kernels=1 + contiguous_kernels(source),
        flops=5 * source.numel,
        kind="reduction",
        rereads=_passes_again(source, dim, target, 2),
        scratch=contiguous_copies(source),
    )


@rule("aten._safe_softmax")
def softmax_of_rows_that_may_be_masked(node: OpNode, target: Target) -> Work:
    """Softmax; rows that are minus infinity throughout (a scalar, equal, all) are set to zero (a scalar, where)
    (``_safe_softmax`` in SoftMax.cpp)."""
    source, result = node.inputs[0], node.outputs[0]
    dim = _softmax_dim(node, len(source.shape))
    masked = contiguous(result, dtype="bool")
    rows = reduction(masked, (dim,), target)
    over = kernels_over(result.shape, result)
    cast = kernels_over(source.shape, source, result) if source.dtype != result.dtype else 0
    return streaming(
        node,
        kernels=cast + contiguous_kernels(source) + 1 + 2 + rows.kernels + 2 * over,
        memsets=rows.memsets,
        flops=8 * source.numel,
        kind="reduction",
        rereads=(whole(source),),
        scratch=(*contiguous_copies(source), source.numel, result.nbytes),
    )


@rule("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def softmax_backward(node: OpNode, target: Target) -> Work:
    """One kernel over contiguous gradient and output: multiply, add, subtract, multiply. Softmax multiplies the two
    by a kernel of its own first (``softmax_backward_cuda_out`` in SoftMax.cu)."""
    gradient, output = node.inputs[:2]
    dim = _softmax_dim(node, len(output.shape))
    copied = [gradient, output]
    product: tuple[int, ...] = ()
    multiplies = 0
    if node.facts.packet == "aten._softmax_backward_data":
        multiplies = kernels_over(output.shape, gradient, output)
        product = (output.numel * gradient.itemsize,)
        copied = [output]
        if not result_is_contiguous(gradient, output):
            # The product is copied in the gradient's place.
            multiplies += 1
            product *= 2
    return streaming(
        node,
        kernels=multiplies + contiguous_kernels(*copied) + 1,
        flops=4 * output.numel,
        kind="reduction",
        rereads=(*((whole(output),) if product else ()), *_passes_again(output, dim, target, 1)),
        scratch=product + contiguous_copies(*copied),
    )


# Layer and RMS norm ---------------------------------------------------------------------------------------

#: Elements that the fast kernel loads at once, dtypes it knows, and the longest row it counts in a float
#: (``LayerNormKernelImplInternal`` in layer_norm_kernel.cu).
NORM_VECTOR = 4
NORM_VECTORIZED_DTYPES = ("float32", "float16", "bfloat16")
NORM_LONGEST_ROW = 1 << 24
#: Tile width of the gradients of weight and bias, and the many rows from which on they are summed in two
#: steps (``LaunchGammaBetaBackwardCUDAKernel``).
GAMMA_BETA_WIDTH = 32
GAMMA_BETA_MANY_ROWS = 64 * 1024
GAMMA_BETA_ROWS_A_BLOCK = 32
GAMMA_BETA_MAX_GRID = 32 * 1024
#: Threads of a block of the fast kernel; places that its row takes in the L2 until it is read again: half of what is
#: read lies there twice, for the SMs of either side, and half of the blocks write meanwhile; and the share that is read again
#: where that does not fit, for some sets of the L2 are less crowded. Rows of 16 KB were read 1.7 and 1.8 times (half
#: precision) and 1.3 times (float32) on an H200, rows of 8 KB once.
NORM_THREADS, NORM_PLACES, NORM_AGAIN = 128, 2.0, 2 / 3


def _rows(node: OpNode, source: TensorMeta) -> tuple[int, int]:
    """Rows, and elements of a row."""
    shape = node.arg("normalized_shape")
    row = math.prod(n for n in shape if isinstance(n, int)) if isinstance(shape, tuple) else 1
    return source.numel // max(1, row), row


def _aligned(tensor: TensorMeta) -> bool:
    return tensor.offset % NORM_VECTOR == 0


def _rows_again(source: TensorMeta, rows: int, target: Target) -> tuple[Access, ...]:
    """What the fast kernel reads again of rows that leave the L2 before their second pass."""
    again = _again(source, rows, NORM_THREADS, target, places=NORM_PLACES)
    return tuple(replace(access, nbytes=round(NORM_AGAIN * access.nbytes)) for access in again)


@rule("aten.native_layer_norm", "aten._fused_rms_norm")
def layer_norm(node: OpNode, target: Target) -> Work:
    """Mean, variance, normalize, scale, shift: 7 FLOPs an element (layer_norm_kernel.cu).

    One vectorized kernel; two, moments first, where rows are not a multiple of four elements, too long, or
    not aligned. All operands are made contiguous before.
    """
    source = node.inputs[0]
    rows, row = _rows(node, source)
    operands = [tensor for tensor in node.inputs if on_device(tensor)]
    copied = [tensor for tensor in operands if not tensor.is_contiguous]
    vectorized = (
        source.dtype in NORM_VECTORIZED_DTYPES
        and row <= NORM_LONGEST_ROW
        and row % NORM_VECTOR == 0
        and all(_aligned(tensor) for tensor in operands if tensor.is_contiguous)
    )
    return streaming(
        node,
        kernels=(1 if vectorized else 2) + contiguous_kernels(*copied),
        flops=7 * source.numel,
        kind="reduction",
        rereads=_rows_again(source, rows, target) if vectorized else (whole(source),),
        scratch=contiguous_copies(*copied),
    )


@rule("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
def layer_norm_backward(node: OpNode, target: Target) -> Work:
    """One kernel for the input's gradient, one for those of weight and bias; many short rows are summed to partial
    gradients first, then each by a sum of its own (layer_norm_kernel.cu)."""
    gradient, source = node.inputs[:2]
    rows, row = _rows(node, source)
    mask = node.arg("output_mask")
    wanted = [bool(flag) for flag in mask] if isinstance(mask, tuple) else [True, True, True]
    affine = sum(wanted[1:])
    kernels = int(wanted[0])
    memsets = 0
    partial = 0
    if affine and rows > GAMMA_BETA_MANY_ROWS and row // GAMMA_BETA_WIDTH < target.sm_count // 2:
        blocks = min(GAMMA_BETA_MAX_GRID // -(-row // GAMMA_BETA_WIDTH), -(-rows // GAMMA_BETA_ROWS_A_BLOCK))
        shape = (blocks, row)
        total = sums(replace(source, shape=shape, stride=(row, 1), offset=0), (0,), target)
        kernels += 1 + affine * total.kernels
        memsets = affine * total.memsets
        partial = blocks * row * source.itemsize
    elif affine:
        kernels += 1
    copied = [tensor for tensor in node.inputs if on_device(tensor) and not tensor.is_contiguous]
    second_pass = (whole(gradient), whole(source)) if wanted[0] and affine else ()
    return streaming(
        node,
        kernels=kernels + contiguous_kernels(*copied),
        memsets=memsets,
        flops=12 * source.numel,
        kind="reduction",
        rereads=second_pass,
        scratch=contiguous_copies(*copied) + (partial,) * affine if partial else contiguous_copies(*copied),
    )


# Batch norm -----------------------------------------------------------------------------------------------

#: Block and grid of the channels-last kernels (``flexible_launch_configs`` in Normalization.cuh).
TILE_WIDTH = 32
TILE_ROWS = 16
BATCH_NORM_BLOCK = 512
MAX_GRID_HEIGHT = 128
LEAST_COOPERATING_BLOCKS = 8


def channels_last_blocks(rows: int, channels: int) -> int:
    """Blocks that share a channel's sum; above one their semaphores are cleared by a fill."""
    width = min(_power_of_2(channels), TILE_WIDTH)
    height = min(_power_of_2(-(-rows // TILE_ROWS)), BATCH_NORM_BLOCK // width)
    blocks = min(-(-rows // (height * TILE_ROWS)), MAX_GRID_HEIGHT)
    return 1 if blocks < LEAST_COOPERATING_BLOCKS else blocks


def _power_of_2(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _channels_fastest(tensor: TensorMeta) -> bool:
    """``batch_norm_use_channels_last_kernels``: channels last, or rows of channels only."""
    return is_channels_last(tensor) or (tensor.is_contiguous and tensor.stride[1] == 1)


def _implementation(*tensors: TensorMeta) -> str:
    """``batch_norm_choose_impl``: kernels for row-major images, for channels last, or TensorIterator's."""
    kinds = {
        "general"
        if not fits_32_bit_index(tensor)
        else "channels last"
        if _channels_fastest(tensor)
        else "contiguous"
        if tensor.is_contiguous
        else "general"
        for tensor in tensors
    }
    return kinds.pop() if len(kinds) == 1 else "general"


@dataclass(frozen=True, slots=True)
class _Steps:
    kernels: int
    memsets: int = 0


def _statistics(source: TensorMeta, target: Target) -> _Steps:
    """A channel's sums: one kernel, with a fill of semaphores where blocks share a channel, or ``var_mean``."""
    kind = _implementation(source)
    if kind == "general":
        found = _over_all_but_channels(source, target)
        return _Steps(found.kernels, found.memsets)
    channels = source.shape[1]
    shared = kind == "channels last" and channels_last_blocks(source.numel // channels, channels) > 1
    return _Steps(2 if shared else 1)


def _over_all_but_channels(source: TensorMeta, target: Target) -> Reduction:
    dims = [dim for dim in range(len(source.shape)) if dim != 1]
    return reduction(source, dims, target, input_vector=2)


def _elementwise(source: TensorMeta, parameters: Sequence[object]) -> int:
    """The transformation: one kernel, or TensorIterator's with scalars filled in for parameters not given."""
    if _implementation(source) != "general":
        return 1
    absent = sum(not isinstance(parameter, TensorMeta) for parameter in parameters)
    return kernels_over(source.shape, source) + absent


@rule(
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
    "aten._batch_norm_with_update",
    "aten._batch_norm_with_update_functional",
    "aten._batch_norm_no_update",
)
def batch_norm(node: OpNode, target: Target) -> Work:
    """Training: a channel's sums; running statistics and their inverse; normalize. Inference: the running mean is
    copied, the variance inverted; normalize (Normalization.cu)."""
    source = node.inputs[0]
    packet = node.facts.packet
    training = bool(node.arg("training", "with_update" in packet))
    if "no_training" in packet or "no_update" in packet:
        training = False
    transform = _elementwise(source, (node.arg("weight"), node.arg("bias")))
    if training:
        steps = _statistics(source, target)
        return streaming(
            node,
            kernels=steps.kernels + 1 + transform,
            memsets=steps.memsets,
            flops=7 * source.numel,
            kind="reduction",
            rereads=(whole(source),),
        )
    mean = node.arg("running_mean")
    saved = node.outputs[1] if len(node.outputs) > 1 else None
    by_memcpy = (
        isinstance(mean, TensorMeta) and saved is not None and copies_as_memcpy(mean, contiguous(saved))
    )
    return streaming(
        node,
        kernels=1 + transform + (not by_memcpy),
        memcpys=int(by_memcpy),
        flops=4 * source.numel,
        kind="reduction",
    )


@rule("aten.cudnn_batch_norm")
def cudnn_batch_norm(node: OpNode, _target: Target) -> Work:
    """One kernel (cuDNN, spatial persistent mode): all 1,094 recorded calls. Its inference form is not called."""
    return streaming(node, flops=7 * node.inputs[0].numel, kind="reduction")


@rule("aten.cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(node: OpNode, target: Target) -> Work:
    """One kernel (cuDNN, spatial persistent mode): all 105 recorded calls. A CTA a channel (``bn_bw_1C11``) sums up, then
    passes again over data and gradient: 77 MB of 48 channels on an H200 were read twice, 29 MB of 72 once."""
    data, gradient = node.inputs[:2]
    again = _again(data, data.shape[1], BATCH_NORM_BLOCK, target, places=2 * NORM_PLACES)
    return streaming(
        node,
        flops=12 * data.numel,
        kind="reduction",
        rereads=(*again, *((whole(gradient),) if again else ())),
    )


@rule("aten.native_batch_norm_backward", "aten.batch_norm_backward")
def batch_norm_backward(node: OpNode, target: Target) -> Work:
    """One fused kernel; with channels last, sums and input gradient apart, and a fill of semaphores where blocks share
    a channel (Normalization.cu)."""
    gradient, source = node.inputs[:2]
    mask = node.arg("output_mask")
    wanted = [bool(flag) for flag in mask] if isinstance(mask, tuple) else [True, True, True]
    training = bool(node.arg("train", node.arg("update", True)))
    sums_needed = training or wanted[1] or wanted[2]
    fits = fits_32_bit_index(source) and fits_32_bit_index(gradient)
    channels = source.shape[1]
    if sums_needed and wanted[0] and not _channels_fastest(source) and fits:
        again = _again(source, channels, BATCH_NORM_BLOCK, target)
        return streaming(
            node,
            flops=12 * source.numel,
            kind="reduction",
            rereads=(*again, *((whole(gradient),) if again else ())),
        )
    kernels = 0
    if sums_needed:
        last = _channels_fastest(source) and _channels_fastest(gradient) and fits
        rows = source.numel // channels
        kernels += 2 if last and channels_last_blocks(rows, channels) > 1 else 1
    if wanted[0]:
        weight = node.arg("weight")
        if training:
            general = _implementation(source, gradient) == "general"
            absent = general and not isinstance(weight, TensorMeta)
            kernels += (kernels_over(source.shape, source, gradient) if general else 1) + absent
        else:
            kernels += kernels_over(source.shape, gradient)
    return streaming(
        node,
        kernels=kernels,
        flops=12 * source.numel,
        kind="reduction",
        rereads=(whole(gradient), whole(source)) if sums_needed and wanted[0] else (),
    )


# Group norm -----------------------------------------------------------------------------------------------


@rule("aten.native_group_norm")
def group_norm(node: OpNode, _target: Target) -> Work:
    """Moments a group (two kernels with channels last), scale and shift a channel if there are any, one pass over
    the elements (group_norm_kernel.cu)."""
    source = node.inputs[0]
    moments = 2 if suggests_channels_last(source) and not source.is_contiguous else 1
    affine = any(isinstance(node.arg(name), TensorMeta) for name in ("weight", "bias"))
    fused = affine and node.arg("HxW") != 1
    return streaming(
        node,
        kernels=moments + fused + kernels_over(source.shape, source, *node.outputs[:1]),
        flops=7 * source.numel,
        kind="reduction",
        rereads=(whole(source),),
    )


@rule("aten.native_group_norm_backward")
def group_norm_backward(node: OpNode, _target: Target) -> Work:
    """Sums a channel (two kernels with channels last); for the input a scale, two parameters a group and one pass;
    weight and bias in one kernel (group_norm_kernel.cu)."""
    gradient, source = node.inputs[:2]
    mask = node.arg("output_mask")
    wanted = [bool(flag) for flag in mask] if isinstance(mask, tuple) else [True, True, True]
    one_pixel = node.arg("HxW") == 1
    kernels = 0 if one_pixel else 2 if suggests_channels_last(source) and not source.is_contiguous else 1
    if wanted[0]:
        scaled = isinstance(node.arg("weight"), TensorMeta) and not one_pixel
        kernels += scaled + 1 + kernels_over(source.shape, source, gradient)
    kernels += wanted[1] or wanted[2]
    return streaming(
        node,
        kernels=kernels,
        flops=12 * source.numel,
        kind="reduction",
        rereads=(whole(gradient), whole(source)) if wanted[0] else (),
    )
