"""Pointwise ops whose tag or schema does not say all of it."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import copy_launches
from optrace.cost.rules.table import elements_written, pointwise_kernels, rule, streaming, whole
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import Pass, Work
from optrace.graph import OpNode


@rule("aten.native_dropout")
def drops_and_keeps_the_mask(node: OpNode, _target: Target) -> Work:
    """One fused kernel; it also writes a mask, one byte an element (Dropout.cu). 3 FLOPs: random, compare, scale.
    Not training: a clone and a fill; dropping all: two fills."""
    source = node.inputs[0]
    if node.arg("train") is False:
        kernels, memcpys = copy_launches(source, node.outputs[0])
        return streaming(node, kernels=kernels + 1, memcpys=memcpys, kind="elementwise")
    if node.arg("p") == 1:
        return streaming(node, kernels=2, reads=(), kind="elementwise")
    return streaming(node, flops=3 * source.numel, kind="elementwise")


@rule("aten._fused_dropout")
def drops(node: OpNode, _target: Target) -> Work:
    """One fused kernel that writes a mask too (Dropout.cu)."""
    return streaming(node, flops=3 * node.inputs[0].numel, kind="elementwise")


@rule("aten._masked_scale", "aten.native_dropout_backward")
def scales_by_a_mask(node: OpNode, _target: Target) -> Work:
    """Two multiplications an element (Dropout.cu)."""
    return streaming(
        node, kernels=pointwise_kernels(node), flops=2 * node.inputs[0].numel, kind="elementwise"
    )


@rule(
    "aten.silu_backward",
    "aten.gelu_backward",
    "aten.threshold_backward",
    "aten.tanh_backward",
    "aten.sigmoid_backward",
    "aten.hardswish_backward",
    "aten.hardsigmoid_backward",
    "aten.hardtanh_backward",
    "aten.elu_backward",
    "aten.leaky_relu_backward",
    "aten.log_sigmoid_backward",
    "aten.logit_backward",
    "aten.softplus_backward",
    "aten.softshrink_backward",
    "aten.hardshrink_backward",
    "aten.mish_backward",
    "aten.mse_loss_backward",
    "aten.smooth_l1_loss_backward",
    "aten.huber_loss_backward",
    "aten.hardswish",
    "aten.hardswish_",
    "aten.hardtanh",
    "aten.hardtanh_",
    "aten.leaky_relu",
    "aten.leaky_relu_",
    "aten.floor_divide",
    "aten.floor_divide_",
    "aten.elu",
    "aten.elu_",
    "aten.celu",
    "aten.celu_",
    "aten.masked_fill_",
    "aten.where",
    "aten.clamp",
    "aten.lerp",
    "aten.log_sigmoid_forward",
    "aten.rsub.Tensor",
    "aten._prelu_kernel",
    "aten.rrelu_with_noise_backward",
    "aten.glu",
    "aten.glu_backward",
    "aten.complex",
    "aten.polar",
    "aten.view_as_complex_copy",
)
def one_pass_over_elements(node: OpNode, _target: Target) -> Work:
    """One TensorIterator kernel, one FLOP an output element whatever the function."""
    return streaming(node, kernels=pointwise_kernels(node), flops=elements_written(node), kind="elementwise")


@rule("aten.linalg_cross")
def crosses(node: OpNode, _target: Target) -> Work:
    """Two multiplications and a subtraction a component, in one kernel (CrossKernel.cu)."""
    return streaming(node, flops=3 * elements_written(node), kind="elementwise")


@rule("aten.soft_margin_loss_backward")
def soft_margin_gradients(node: OpNode, _target: Target) -> Work:
    """neg, mul, exp; mul, mul; add; div, mul (Loss.cpp)."""
    elements = elements_written(node)
    return streaming(node, kernels=8 * pointwise_kernels(node), flops=8 * elements, kind="elementwise")


@rule("aten._prelu_kernel_backward", "aten.rrelu_with_noise")
def one_pass_with_two_results(node: OpNode, _target: Target) -> Work:
    """One kernel that writes both gradients, or a result and its noise (PreluKernel in ActivationPreluKernel.cu)."""
    return streaming(node, flops=elements_written(node), kind="elementwise")


@rule("aten.pow.Scalar")
def fills_the_base_first(node: OpNode, _target: Target) -> Work:
    """The base becomes a tensor by a fill, then one pass (Pow.cpp); a base of one is only filled in."""
    base_is_one = node.arg("self") == 1
    return streaming(
        node,
        kernels=1 if base_is_one else 1 + pointwise_kernels(node),
        flops=0 if base_is_one else elements_written(node),
        kind="elementwise",
    )


@rule("aten.pow.Tensor_Scalar")
def raises_to_a_power(node: OpNode, _target: Target) -> Work:
    """One pass; to the first power a copy, to the zeroth a fill (Pow.cpp)."""
    exponent, result = node.arg("exponent"), node.outputs[0]
    if exponent == 0:
        return streaming(node, kernels=kernels_over(result.shape, result), reads=(), kind="elementwise")
    if exponent == 1:
        kernels, memcpys = copy_launches(node.inputs[0], result)
        return streaming(node, kernels=kernels, memcpys=memcpys, kind="copy" if memcpys else "elementwise")
    return streaming(node, kernels=pointwise_kernels(node), flops=elements_written(node), kind="elementwise")


@rule("aten.masked_fill")
def copies_then_fills(node: OpNode, _target: Target) -> Work:
    """The out-of-place form clones, then fills the clone in place (TensorAdvancedIndexing.cpp)."""
    source, result = node.inputs[0], node.outputs[0]
    kernels, memcpys = copy_launches(source, result)
    mask = node.tensor("mask")
    return streaming(
        node,
        kernels=kernels + kernels_over(result.shape, result, mask),
        memcpys=memcpys,
        flops=elements_written(node),
        kind="elementwise",
        passes=(
            Pass((whole(source),), (whole(result),), is_copy=memcpys > 0),
            Pass((whole(result), whole(mask)), (whole(result),)),
        ),
    )
