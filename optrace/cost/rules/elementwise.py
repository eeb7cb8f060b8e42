"""Pointwise ops whose tag or schema does not say all of it."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.foreach import multi_tensor_launches
from optrace.cost.rules.table import elements_written, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


@rule("aten.native_dropout")
def drops_and_keeps_the_mask(node: OpNode, _target: Target) -> Work:
    """One fused kernel; it also writes a mask, one byte an element (Dropout.cu). 3 FLOPs: random, compare, scale."""
    return streaming(node, flops=3 * node.inputs[0].numel, kind="elementwise")


@rule("aten._fused_dropout", "aten._masked_scale", "aten.native_dropout_backward")
def scales_by_a_mask(node: OpNode, _target: Target) -> Work:
    """Two multiplications an element (Dropout.cu)."""
    return streaming(node, flops=2 * node.inputs[0].numel, kind="elementwise")


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
    "aten.softplus_backward",
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
    "aten.glu",
    "aten.glu_backward",
    "aten.complex",
    "aten.polar",
    "aten.view_as_complex_copy",
)
def one_pass_over_elements(node: OpNode, _target: Target) -> Work:
    """One TensorIterator kernel, one FLOP an output element whatever the function."""
    return streaming(node, flops=elements_written(node), kind="elementwise")


@rule("aten.masked_fill")
def copies_then_fills(node: OpNode, _target: Target) -> Work:
    """The out-of-place form copies, then fills in place (TensorAdvancedIndexing.cpp)."""
    return streaming(node, kernels=2, flops=elements_written(node), kind="elementwise")


@rule("aten._fused_adamw_", "aten._fused_adam_", "aten._fused_sgd_", "aten._fused_adagrad_")
def fused_optimizer(node: OpNode, _target: Target) -> Work:
    """Chunks of 65,536 elements through multi-tensor kernels (fused_adam_impl.cu). About 12 FLOPs an element."""
    parameters = node.tensors("self")
    depth = 5 if node.arg("amsgrad") else 4
    elements = sum(parameter.numel for parameter in parameters)
    return streaming(
        node,
        kernels=multi_tensor_launches([parameter.numel for parameter in parameters], depth),
        flops=12 * elements,
        kind="foreach",
    )
