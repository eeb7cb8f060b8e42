"""Softmax and norms: rows, groups or channels, a block each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optrace.cost.device.kernel import MEMSET, SMALL, Kernel, Launch, launches
from optrace.cost.device.reductions import reducing
from optrace.cost.device.streams import STRIDED_BLOCK, copy, over, relaid
from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import contiguous
from optrace.cost.rules.normalization import (
    NORM_LONGEST_ROW,
    NORM_VECTOR,
    NORM_VECTORIZED_DTYPES,
    PERSISTENT_BYTES,
    PERSISTENT_ELEMENTS,
    _channels_fastest,
    _implementation,
    _rows,
    _softmax_dim,
    channels_last_blocks,
)
from optrace.cost.rules.table import on_device
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


def _softmax_kernel(source: TensorMeta, dim: int, nbytes: float, *, backward: bool = False) -> Kernel:
    """Short rows a warp each, long ones a block each; along an outer dimension a thread an output column."""
    shape = source.shape or (1,)
    size = shape[dim]
    inner = math.prod(shape[dim + 1 :])
    rows = source.numel / max(1, size)
    tail = "_backward" if backward else ""
    if inner > 1:
        return Kernel("softmax_spatial" + tail, nbytes, rows / STRIDED_BLOCK, size)
    if size <= PERSISTENT_ELEMENTS and size * source.itemsize <= PERSISTENT_BYTES:
        padded = 1 << max(0, size - 1).bit_length()
        return Kernel("softmax_warp" + tail, nbytes, rows / 4, max(1.0, padded / 32))
    return Kernel("softmax_block" + tail, nbytes, rows, size / 4096)


@launches("aten._softmax", "aten._log_softmax")
def softmax(node: OpNode, _work: Work, _target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    dim = _softmax_dim(node, len(source.shape))
    return [*relaid(source), _softmax_kernel(source, dim, float(source.nbytes + result.nbytes))]


@launches("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def softmax_backward(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    gradient, output = node.inputs[:2]
    result = node.outputs[0]
    dim = _softmax_dim(node, len(output.shape))
    first: list[Launch] = []
    if node.facts.packet == "aten._softmax_backward_data":
        first = [over(output.shape, contiguous(gradient), gradient, output)]
    nbytes = float(gradient.numel * gradient.itemsize + output.nbytes + result.nbytes)
    spare = (work.kernels or 0) - len(first) - 1
    return [
        *first,
        *[copy(output, contiguous(output))] * spare,
        _softmax_kernel(output, dim, nbytes, backward=True),
    ]


@launches("aten.native_layer_norm", "aten._fused_rms_norm")
def layer_norm(node: OpNode, _work: Work, _target: Target) -> Sequence[Launch]:
    """A block of 128 threads a row; without vectors moments first, a block of 512 a row, then a pass."""
    source, result = node.inputs[0], node.outputs[0]
    rows, row = _rows(node, source)
    operands = [tensor for tensor in node.inputs if on_device(tensor)]
    vectorized = (
        source.dtype in NORM_VECTORIZED_DTYPES
        and row <= NORM_LONGEST_ROW
        and row % NORM_VECTOR == 0
        and all(tensor.offset % NORM_VECTOR == 0 for tensor in operands if tensor.is_contiguous)
    )
    copied = relaid(*[tensor for tensor in operands if not tensor.is_contiguous])
    nbytes = float(source.nbytes + result.nbytes)
    if vectorized:
        scaled = isinstance(node.arg("weight"), TensorMeta)
        kind = "rms_norm" if "rms" in node.op else "layer_norm_scaled" if scaled else "layer_norm"
        return [*copied, Kernel(kind, nbytes, rows, row / 512)]
    return [
        *copied,
        Kernel("row_moments", float(source.nbytes), rows, row / 512),
        Kernel("norm_rows", nbytes, rows, row / 256),
    ]


@launches("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
def layer_norm_backward(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    gradient, source = node.inputs[:2]
    rows, row = _rows(node, source)
    mask = node.arg("output_mask")
    wanted = [bool(flag) for flag in mask] if isinstance(mask, tuple) else [True, True, True]
    found: list[Launch] = []
    both = float(gradient.nbytes + source.nbytes)
    if wanted[0]:
        found.append(Kernel("layer_norm_backward", both + source.nbytes, rows, row / 512))
    left = (work.kernels or 0) - len(found)
    if left:
        found.append(Kernel("gamma_beta", both, row / 32, rows / 32))
        found.extend([Kernel("reduce_columns", 0.0, row / 32, 8.0)] * (left - 1))
    return [*found, *[MEMSET] * work.memsets]


def _batch_norm_pass(source: TensorMeta, nbytes: float, kind: str) -> Kernel:
    return Kernel(kind, nbytes, source.numel / STRIDED_BLOCK, 1)


def _statistics(source: TensorMeta, target: Target) -> list[Launch]:
    kind = _implementation(source)
    channels = source.shape[1]
    each = source.numel // channels
    if kind == "general":
        dims = [dim for dim in range(len(source.shape)) if dim != 1]
        return reducing(source, dims, target, input_vector=2, kind="moments")
    if kind == "channels last":
        shared = channels_last_blocks(each, channels)
        columns = math.ceil(channels / 32)
        kernel = Kernel("channel_moments_last", float(source.nbytes), columns * shared, each / 16 / shared)
        return [SMALL, kernel] if shared > 1 else [kernel]
    return [Kernel("channel_moments", float(source.nbytes), channels, each / 512)]


@launches(
    "aten.native_batch_norm", "aten._native_batch_norm_legit", "aten._native_batch_norm_legit_no_training",
    "aten._batch_norm_with_update", "aten._batch_norm_with_update_functional", "aten._batch_norm_no_update",
)  # fmt: skip
def batch_norm(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    training = bool(node.arg("training", "with_update" in node.facts.packet))
    if "no_training" in node.facts.packet or "no_update" in node.facts.packet:
        training = False
    nbytes = float(source.nbytes + result.nbytes)
    last = _implementation(source)
    kind = (
        "batch_norm_pass"
        if last == "contiguous"
        else "batch_norm_pass_last"
        if last == "channels last"
        else "strided"
    )
    first: list[Launch] = [*_statistics(source, target), SMALL] if training else []
    spare = (work.launches or 0) - len(first) - 1
    return [*first, *[SMALL] * spare, _batch_norm_pass(source, nbytes, kind)]


#: cuDNN's training kernel holds a channel in registers where it has this few values.
SINGLE_READ_VALUES = 1 << 14


@launches("aten.cudnn_batch_norm")
def cudnn_batch_norm(node: OpNode, _work: Work, _target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    channels = source.shape[1]
    nbytes = float(source.nbytes + result.nbytes)
    if node.arg("training"):
        each = source.numel // max(1, channels)
        kind = "cudnn_norm_single" if each <= SINGLE_READ_VALUES else "cudnn_norm"
        return [
            Kernel(
                kind, nbytes if kind == "cudnn_norm_single" else nbytes + source.nbytes, channels, each / 512
            )
        ]
    plane = math.prod(source.shape[2:])
    return [Kernel("cudnn_norm_inference", nbytes, source.shape[0] * channels, plane / 512)]


@launches("aten.cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(node: OpNode, _work: Work, _target: Target) -> Sequence[Launch]:
    source = node.inputs[0]
    channels = source.shape[1]
    each = source.numel // max(1, channels)
    return [Kernel("cudnn_norm_backward", 3.0 * source.nbytes, channels, each / 512)]


@launches("aten.native_batch_norm_backward", "aten.batch_norm_backward")
def batch_norm_backward(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    gradient, source = node.inputs[:2]
    channels = source.shape[1]
    each = source.numel // max(1, channels)
    both = float(gradient.nbytes + source.nbytes)
    count = work.kernels or 0
    if count == 1 and not _channels_fastest(source):
        return [Kernel("batch_norm_backward", both + source.nbytes, channels, each / 512)]
    shared = channels_last_blocks(each, channels)
    sums = Kernel("channel_moments_last", both, math.ceil(channels / 32) * shared, each / 16 / shared)
    one_pass = _batch_norm_pass(source, both + source.nbytes, "batch_norm_pass_last")
    return [*[SMALL] * (count - 2), *[sums] * (count > 1), one_pass]


@launches("aten.native_group_norm")
def group_norm(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    groups, batch = node.arg("group"), node.arg("N")
    assert isinstance(groups, int)
    assert isinstance(batch, int)
    rows = max(1, groups * batch)
    row = source.numel / rows
    # One warp a short row (group_norm_kernel.cu).
    threads = 32 if row < 512 else 512
    moments = Kernel(
        "group_moments" if threads == 512 else "group_moments_warp", float(source.nbytes), rows, row / 512
    )
    channels = source.shape[1]
    plane = source.numel // max(1, batch * channels)
    shape = (batch, channels, plane)
    whole = TensorMeta(
        shape, (channels * plane, plane, 1), source.dtype, source.device, 0, source.nbytes, 0, 0
    )
    each = TensorMeta((batch, channels, 1), (channels, 1, 1), source.dtype, source.device, 0, 0, 0, 0)
    affine = any(isinstance(node.arg(name), TensorMeta) for name in ("weight", "bias"))
    operands = (each, each) if affine or plane > 1 else (each,)
    passes = over(shape, whole, whole, *operands)
    nbytes = float(source.nbytes + result.nbytes)
    count = (work.kernels or 2) - 1
    scale = 1 if affine and plane > 1 else 0
    each_pass = Kernel(
        passes.kind, nbytes / max(1, count - scale), passes.blocks / max(1, count - scale), passes.steps
    )
    return [moments, *[SMALL] * scale, *[each_pass] * (count - scale)]


@launches("aten.native_group_norm_backward")
def group_norm_backward(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    gradient, source = node.inputs[:2]
    groups, batch = node.arg("group"), node.arg("N")
    assert isinstance(groups, int)
    assert isinstance(batch, int)
    both = float(gradient.nbytes + source.nbytes)
    channels = source.shape[1]
    plane = source.numel / max(1, batch * channels)
    sums = Kernel("group_sums", both, batch * channels, plane / 512)
    last = Kernel("strided", both + source.nbytes, source.numel / STRIDED_BLOCK, 2)
    return [sums, *[SMALL] * max(0, (work.kernels or 2) - 2), last]
