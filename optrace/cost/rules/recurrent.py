"""Recurrent nets: whole cuDNN sequences and fused cells."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.table import elements_written, inputs_read, outputs_written, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


@rule("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def fused_cell(node: OpNode, _target: Target) -> Work:
    """The gates after their GEMMs, about 10 FLOPs an output element (RNN.cu)."""
    return streaming(node, flops=10 * elements_written(node), kind="elementwise")


@rule("aten._thnn_fused_lstm_cell_backward_impl", "aten._thnn_fused_gru_cell_backward")
def fused_cell_backward(node: OpNode, _target: Target) -> Work:
    return streaming(node, flops=10 * elements_written(node), kind="elementwise")


@rule("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
def cudnn_sequence(node: OpNode, _target: Target) -> Work:
    """cuDNN launches from a few to thousands of kernels for a sequence, by size and algorithm: not known.

    FLOPs are those of its gates: every weight meets every time step and sample once, twice backward.
    """
    data = node.inputs[0]
    elements = sum(weight.numel for weight in node.tensors("weight"))
    rows = data.shape[0] * data.shape[1] if len(data.shape) == 3 else data.shape[0]
    flops = 2 * elements * rows * (2 if "backward" in node.op else 1)
    return Work(
        kernels=None,
        reads=tuple(inputs_read(node)),
        writes=tuple(outputs_written(node)),
        flops=flops,
        matmul_flops=flops,
        kind="matmul",
        math_dtype=data.dtype,
        source="unknown",
    )


@rule("aten._cudnn_rnn_flatten_weight")
def flattens_weights(node: OpNode, _target: Target) -> Work:
    """Zero the buffer, copy each weight into it (RNN.cpp)."""
    return streaming(node, kernels=1, memcpys=max(0, len(node.inputs)), kind="copy")
