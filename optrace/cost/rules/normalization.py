"""Layer, batch, group and RMS norms, and softmax: a few FLOPs an element in one to four kernels."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


@rule("aten._softmax", "aten._log_softmax", "aten._safe_softmax")
def softmax(node: OpNode, _target: Target) -> Work:
    """Max, subtract, exp, add, divide: 5 FLOPs an element in one kernel (SoftMax.cu)."""
    return streaming(node, flops=5 * node.inputs[0].numel, kind="reduction")


@rule("aten._softmax_backward_data", "aten._log_softmax_backward_data")
def softmax_backward(node: OpNode, _target: Target) -> Work:
    """Multiply, add, subtract, multiply (SoftMax.cu)."""
    return streaming(node, flops=4 * node.inputs[0].numel, kind="reduction")


@rule("aten.native_layer_norm", "aten._fused_rms_norm")
def layer_norm(node: OpNode, _target: Target) -> Work:
    """Mean, variance, normalize, scale, shift: 7 FLOPs an element (layer_norm_kernel.cu)."""
    return streaming(node, flops=7 * node.inputs[0].numel, kind="reduction")


@rule("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
def layer_norm_backward(node: OpNode, _target: Target) -> Work:
    """One kernel for the input's gradient, one for weight and bias (layer_norm_kernel.cu)."""
    return streaming(node, kernels=2, flops=12 * node.inputs[0].numel, kind="reduction")


@rule(
    "aten.native_batch_norm",
    "aten._native_batch_norm_legit",
    "aten._native_batch_norm_legit_no_training",
    "aten._batch_norm_with_update",
    "aten._batch_norm_no_update",
    "aten.miopen_batch_norm",
)
def batch_norm(node: OpNode, _target: Target) -> Work:
    """In inference one pass; in training statistics come first (Normalization.cu, cuDNN)."""
    training = bool(node.arg("training", node.facts.packet == "aten._batch_norm_with_update"))
    return streaming(
        node,
        kernels=2 if training else 1,
        flops=(7 if training else 4) * node.inputs[0].numel,
        kind="reduction",
    )


@rule("aten.cudnn_batch_norm")
def cudnn_batch_norm(node: OpNode, _target: Target) -> Work:
    """One persistent kernel (cuDNN, spatial mode)."""
    return streaming(node, flops=7 * node.inputs[0].numel, kind="reduction")


@rule("aten.cudnn_batch_norm_backward")
def cudnn_batch_norm_backward(node: OpNode, _target: Target) -> Work:
    """One persistent kernel (cuDNN, spatial mode)."""
    return streaming(node, flops=12 * node.inputs[0].numel, kind="reduction")


@rule("aten.native_batch_norm_backward", "aten.batch_norm_backward")
def batch_norm_backward(node: OpNode, _target: Target) -> Work:
    """Sums a channel, then the input's gradient (Normalization.cu)."""
    return streaming(node, kernels=2, flops=12 * node.inputs[0].numel, kind="reduction")


@rule("aten.native_group_norm")
def group_norm(node: OpNode, _target: Target) -> Work:
    """Moments a group, fused scale and shift, one pass (group_norm_kernel.cu)."""
    return streaming(node, kernels=3, flops=7 * node.inputs[0].numel, kind="reduction")


@rule("aten.native_group_norm_backward")
def group_norm_backward(node: OpNode, _target: Target) -> Work:
    return streaming(node, kernels=4, flops=12 * node.inputs[0].numel, kind="reduction")
