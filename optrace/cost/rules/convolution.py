"""Convolutions: PyTorch's choice of a backend (Convolution.cpp), and their multiply-adds.

Depthwise ones have kernels of PyTorch's own; the rest goes to cuDNN, which ``implicit_gemm`` models.
"""

from __future__ import annotations

import math

from optrace.cost.profiles import Target
from optrace.cost.rules.implicit_gemm import (
    WINOGRAD_POINTS,
    WINOGRAD_TILE,
    ConvPass,
    PassPlan,
    plan,
    plan_data_gradient,
    plan_weight_gradient,
)
from optrace.cost.rules.reduce_config import reduction
from optrace.cost.rules.table import inputs_read, outputs_written, rule, whole
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import FREE, Operand, Pass, Work
from optrace.graph import OpNode, TensorMeta


@rule("aten.convolution", "aten._convolution", "aten.cudnn_convolution", "aten.convolution_overrideable")
def convolves(node: OpNode, target: Target) -> Work:
    """cuDNN is given no bias: a bias is one more pass over the output. The depthwise kernel adds its own.

    Tensors that lie neither row-major nor channels last are copied first; weights follow the data's layout.
    """
    data, weight, result = node.inputs[0], node.inputs[1], node.outputs[0]
    flops = 2 * multiply_adds(node, data, result, weight)
    biased = node.arg("bias") is not None
    if not outputs_written(node):
        return FREE
    kernels, memsets = 1, 0
    steps = _Steps()
    if not is_depthwise_native(node, data, weight):
        made = plan(forward_pass(node, data, weight, result), target)
        relaid = relaid_tensors(data, weight)
        kernels = made.kernels + len(relaid)
        memsets = made.memsets
        steps.relay(relaid)
        steps.multiply((data, made.copies_data), (weight, made.copies_weights), (result, made.copies_result))
        if biased:
            kernels += kernels_over(result.shape, result)
            steps.passes.append(Pass((whole(result), whole(node.tensor("bias"))), (whole(result),)))
    return Work(
        kernels=kernels,
        memsets=memsets,
        reads=tuple(inputs_read(node)),
        writes=tuple(outputs_written(node)),
        flops=flops + (result.numel if biased else 0),
        matmul_flops=flops,
        kind="convolution",
        math_dtype=target.convolution_dtype(data.dtype),
        scratch=tuple(steps.scratch),
        passes=tuple(steps.passes),
    )


@rule("aten.convolution_backward", "aten.convolution_backward_overrideable")
def convolves_backward(node: OpNode, target: Target) -> Work:
    """One pass for each gradient that is wanted: data, weights; the bias's is a sum over all but the channels."""
    gradient, data, weight = node.inputs[:3]
    wanted = node.arg("output_mask", (True, True, True))
    assert isinstance(wanted, tuple)
    wants_data, wants_weight, wants_bias = (bool(flag) for flag in wanted)
    flops = 2 * multiply_adds(node, data, gradient, weight) * (wants_data + wants_weight)
    if not outputs_written(node):
        return FREE
    kernels, memsets, reserved = 0, 0, 0
    steps = _Steps()
    results = iter(node.outputs)
    if is_depthwise_native(node, data, weight):
        kernels = wants_data + wants_weight
        for wanted_here, other in ((wants_data, weight), (wants_weight, data)):
            if wanted_here:
                steps.multiply((gradient, False), (other, False), (next(results), False))
    else:
        forward = forward_pass(node, data, weight, gradient)
        relaid = relaid_tensors(data, weight, gradient)
        kernels = len(relaid)
        steps.relay(relaid)
        if wants_data:
            made = plan_data_gradient(gradient_pass(forward, data), target)
            kernels, memsets = kernels + made.kernels, memsets + made.memsets
            steps.multiply(
                (gradient, made.copies_data),
                (weight, made.copies_weights),
                (next(results), made.copies_result),
            )
            steps.release()
        if wants_weight:
            made = plan_weight_gradient(forward, target)
            kernels, memsets = kernels + made.kernels, memsets + made.memsets
            steps.multiply(
                (data, made.copies_data),
                (gradient, made.copies_weights),
                (next(results), made.copies_result),
                partial_sums=_partial_sums(made, data, gradient, weight),
            )
    if wants_bias:
        summed = reduction(gradient, (0, *range(2, len(gradient.shape))), target)
        kernels, memsets = kernels + summed.kernels, memsets + summed.memsets
        reserved = summed.staged * max(4, gradient.itemsize)
        steps.passes.append(Pass((steps.source(gradient),), (whole(next(results)),)))
    return Work(
        kernels=kernels,
        memsets=memsets,
        reads=tuple(inputs_read(node)),
        writes=tuple(outputs_written(node)),
        flops=flops + (gradient.numel if wants_bias else 0),
        matmul_flops=flops,
        kind="convolution",
        math_dtype=target.convolution_dtype(data.dtype),
        scratch=tuple(steps.scratch),
        reserved=reserved,
        passes=tuple(steps.passes),
    )


def _partial_sums(made: PassPlan, data: TensorMeta, gradient: TensorMeta, weight: TensorMeta) -> int:
    """Bytes of what a weight gradient is put together from: one of each image in float32, or Winograd's transforms."""
    if made.sums_images:
        return data.shape[0] * weight.numel * 4
    if made.winograd:
        points = WINOGRAD_POINTS / WINOGRAD_TILE
        return round(points * (data.nbytes + gradient.nbytes) + weight.nbytes * WINOGRAD_POINTS / 9)
    return 0


class _Steps:
    """The kernels of a call, one after the other, and their temporaries."""

    def __init__(self) -> None:
        self.scratch: list[int] = []
        self.passes: list[Pass] = []
        self._relaid: dict[int, int] = {}
        self._free: list[int] = []

    def source(self, tensor: TensorMeta) -> Operand:
        """Where a tensor is read: as it lies, or as PyTorch laid it out."""
        return self._relaid.get(tensor.id, whole(tensor))

    def relay(self, tensors: list[TensorMeta]) -> None:
        """Copies that PyTorch makes before it calls cuDNN."""
        for tensor in tensors:
            made = self._temporary(tensor.numel * tensor.itemsize)
            self.passes.append(Pass((whole(tensor),), (made,)))
            self._relaid[tensor.id] = made

    def multiply(
        self,
        left: tuple[TensorMeta, bool],
        right: tuple[TensorMeta, bool],
        result: tuple[TensorMeta, bool],
        partial_sums: int = 0,
    ) -> None:
        """A product, before it copies of the operands that are to be copied, behind it that of its result."""
        sources = tuple(
            self._copied(tensor) if copied else self.source(tensor) for tensor, copied in (left, right)
        )
        written, copied = result
        if not copied and not partial_sums:
            self.passes.append(Pass(sources, (whole(written),), is_product=True))
            return
        made = self._temporary(partial_sums or written.numel * written.itemsize)
        self.passes.append(Pass(sources, (made,), is_product=True))
        self.passes.append(Pass((made,), (whole(written),)))

    def _copied(self, tensor: TensorMeta) -> Operand:
        """The channels-last copy that cuDNN makes of a tensor."""
        source = self.source(tensor)
        made = self._temporary(tensor.numel * tensor.itemsize)
        self.passes.append(Pass((source,), (made,)))
        return made

    def release(self) -> None:
        """The call of cuDNN is over: its workspace may serve the next one's."""
        self._free = [place for place in range(len(self.scratch)) if place not in self._relaid.values()]

    def _temporary(self, nbytes: int) -> int:
        place = next((place for place in self._free if self.scratch[place] == nbytes), None)
        if place is not None:
            self._free.remove(place)
            return place
        self.scratch.append(nbytes)
        return len(self.scratch) - 1


def multiply_adds(node: OpNode, large: TensorMeta, small: TensorMeta, weight: TensorMeta) -> int:
    """Each weight meets each position of the convolution's output (of its input, when transposed) once a sample.

    ``weight`` is [out, in / groups, kernel...]; transposed [in, out / groups, kernel...]: its elements times
    samples times positions either way. ``large`` is the input, ``small`` the output.
    """
    transposed = bool(node.arg("transposed", False))
    positions = math.prod((large if transposed else small).shape[2:])
    return weight.numel * positions * large.shape[0]


def is_depthwise_native(node: OpNode, data: TensorMeta, weight: TensorMeta) -> bool:
    """ConvParams::is_depthwise, and not use_cudnn_depthwise (Convolution.cpp): one group a channel, not
    transposed, row-major. float16 goes to cuDNN where its kernel is known to be good."""
    groups = _groups(node)
    depthwise = (
        groups > 1
        and data.shape[1] == groups
        and weight.shape[0] % groups == 0
        and not node.arg("transposed", False)
        and len(data.shape) <= 5
    )
    if not depthwise or _is_channels_last(data):
        return False
    window = weight.shape[2:]
    cudnn_has_it = (
        data.dtype == "float16"
        and len(window) == 2
        and window[0] == window[1] in (1, 3, 5)
        and groups >= 32
        and _all(node, "dilation", 1)
        and _all(node, "stride", 1)
        and data.shape[3] >= 7
    )
    return not cudnn_has_it


def forward_pass(node: OpNode, data: TensorMeta, weight: TensorMeta, result: TensorMeta) -> ConvPass:
    """The forward pass; that of a transposed convolution runs as a data gradient."""
    groups, transposed = _groups(node), bool(node.arg("transposed", False))
    strides = _steps(node, "stride", len(weight.shape) - 2)
    dilations = _steps(node, "dilation", len(weight.shape) - 2)
    plane = math.prod((data if transposed else result).shape[2:])
    return ConvPass(
        pixels=data.shape[0] * plane,
        plane=plane,
        inputs=data.shape[1] // groups,
        outputs=result.shape[1] // groups,
        window=weight.shape[2:],
        groups=groups,
        dtype=data.dtype,
        channels_last=_is_channels_last(data),
        strided=any(stride > 1 for stride in strides),
        overlaps=any(stride < size for stride, size in zip(strides, weight.shape[2:], strict=True)),
        reach=max(1 + step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)),
        transposed=transposed,
        skipped=math.prod(strides),
        dilated=any(step > 1 for step in dilations),
        unpadded=all(
            not step
            for step, size in zip(_steps(node, "padding", len(strides)), weight.shape[2:], strict=True)
            if size > 1
        ),
    )


def gradient_pass(forward: ConvPass, data: TensorMeta) -> ConvPass:
    """The data gradient's pass: from the outputs' channels back to the inputs', over the data's pixels."""
    plane = math.prod(data.shape[2:])
    return ConvPass(
        pixels=data.shape[0] * plane,
        plane=plane,
        inputs=forward.outputs,
        outputs=forward.inputs,
        window=forward.window,
        groups=forward.groups,
        dtype=forward.dtype,
        channels_last=forward.channels_last,
        strided=forward.strided,
        overlaps=forward.overlaps,
        reach=forward.reach,
        transposed=not forward.transposed,
        skipped=forward.skipped,
        dilated=forward.dilated,
        unpadded=forward.unpadded,
    )


def relaid_tensors(data: TensorMeta, *others: TensorMeta) -> list[TensorMeta]:
    """Tensors that PyTorch copies into the layout it settled on: channels last if the data or the weights lie so
    (cudnn_conv_suggest_memory_format), else row-major."""
    if _is_channels_last(data) or any(_is_channels_last(tensor) for tensor in others[:1]):
        return [tensor for tensor in (data, *others) if not _lies_channels_last(tensor)]
    return [tensor for tensor in (data, *others) if not tensor.is_contiguous]


def _is_channels_last(tensor: TensorMeta) -> bool:
    """Channels vary fastest, and that is not row-major as well (suggest_memory_format)."""
    return len(tensor.shape) in (4, 5) and tensor.stride[1] == 1 and not _fits_both(tensor)


def _fits_both(tensor: TensorMeta) -> bool:
    return tensor.is_contiguous or tensor.shape[1] == 1


def _lies_channels_last(tensor: TensorMeta) -> bool:
    order = (1, *range(len(tensor.shape) - 1, 1, -1), 0)
    expected = 1
    for dim in order:
        if tensor.shape[dim] != 1 and tensor.stride[dim] != expected:
            return False
        expected *= tensor.shape[dim]
    return True


def _groups(node: OpNode) -> int:
    groups = node.arg("groups", 1)
    assert isinstance(groups, int)
    return groups


def _steps(node: OpNode, name: str, dims: int) -> tuple[int, ...]:
    """Strides or dilations, one a dimension of the window."""
    value = node.arg(name, (1,))
    steps = value if isinstance(value, tuple) else (value,)
    whole = [step for step in steps if isinstance(step, int)]
    return tuple(whole if len(whole) == dims else whole[:1] * dims)


def _all(node: OpNode, name: str, expected: int) -> bool:
    return all(step == expected for step in _steps(node, name, 1)) if node.arg(name) is not None else True
