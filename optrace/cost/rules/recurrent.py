"""Recurrent nets: whole cuDNN sequences and fused cells."""

from __future__ import annotations

from dataclasses import dataclass, replace

from optrace.cost.profiles import Target
from optrace.cost.rules.table import elements_written, inputs_read, outputs_written, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta

#: Time steps whose input products cuDNN computes in one GEMM, and the fewest such GEMMs a layer: from the
#: recorded calls of 64, 100 and 512 steps.
STEPS_A_CHUNK = 32
LEAST_CHUNKS = 4
#: ``cudnnRNNMode_t`` of LSTM and GRU, the ones recorded.
GATED_MODES = (2, 3)


@rule("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def fused_cell(node: OpNode, _target: Target) -> Work:
    """The gates after their GEMMs, about 10 FLOPs an output element (RNN.cu)."""
    return streaming(node, flops=10 * elements_written(node), kind="elementwise")


@rule("aten._thnn_fused_lstm_cell_backward_impl", "aten._thnn_fused_gru_cell_backward")
def fused_cell_backward(node: OpNode, _target: Target) -> Work:
    """The gates' gradients in one kernel (RNN.cu)."""
    return streaming(node, flops=10 * elements_written(node), kind="elementwise")


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Sizes of a call on padded (not packed) sequences."""

    steps: int
    batch: int
    layers: int
    directions: int
    dropout: bool
    transposed: bool

    @classmethod
    def of(cls, node: OpNode) -> _Sequence | None:
        """None where the sequences are packed or the cell is none of those recorded."""
        data, packed = node.inputs[0], node.arg("batch_sizes")
        layers = node.arg("num_layers")
        if packed or node.arg("mode") not in GATED_MODES or not isinstance(layers, int):
            return None
        batch_first = bool(node.arg("batch_first"))
        batch, steps = data.shape[:2] if batch_first else data.shape[1::-1]
        dropout = bool(node.arg("dropout")) and bool(node.arg("train"))
        directions = 2 if node.arg("bidirectional") else 1
        return cls(steps, batch, layers, directions, dropout, batch_first and batch > 1 and steps > 1)

    @property
    def cells(self) -> int:
        """Steps of all layers and directions: one recurrent GEMM and one pointwise kernel each."""
        return self.steps * self.layers * self.directions


def _flops(node: OpNode, factor: int) -> int:
    """Every weight meets every step and sample once: a multiply and an add."""
    data = node.inputs[0]
    elements = sum(weight.numel for weight in node.tensors("weight") if len(weight.shape) > 1)
    rows = data.shape[0] * data.shape[1] if len(data.shape) == 3 else data.shape[0]
    return factor * 2 * elements * rows


def _work(node: OpNode, flops: int) -> Work:
    return Work(
        kernels=None,
        reads=tuple(inputs_read(node)),
        writes=tuple(outputs_written(node)),
        flops=flops,
        matmul_flops=flops,
        kind="matmul",
        math_dtype=node.inputs[0].dtype,
        source="unknown",
    )


@rule("aten._cudnn_rnn")
def cudnn_sequence(node: OpNode, _target: Target) -> Work:
    """cuDNN's standard algorithm: a GEMM and a pointwise kernel a step, layer and direction, and GEMMs for the
    inputs of many steps at once.

    A model of cuDNN, not its source: of six recorded calls (LSTM and GRU, one and two directions) five are
    exact and one is 2 launches high in 12,310. Half precision may take persistent kernels, packed sequences others:
    not known.
    """
    work = _work(node, _flops(node, 1))
    sequence = _Sequence.of(node)
    if sequence is None or node.inputs[0].dtype == "float16":
        return work
    chunks = max(LEAST_CHUNKS, -(-sequence.steps // STEPS_A_CHUNK))
    both = sequence.directions == 2
    input_gemms = sequence.layers * (2 if both else chunks)
    dropout = 1 + (sequence.layers - 1) * chunks if sequence.dropout else 0
    return replace(
        work,
        kernels=2 * sequence.cells + input_gemms + dropout + sequence.transposed,
        memsets=2 * sequence.layers if both else 0,
        source="rule",
    )


@rule("aten._cudnn_rnn_backward")
def cudnn_sequence_backward(node: OpNode, _target: Target) -> Work:
    """cuDNN's gradients: not known. One recorded call (LSTM, 64 steps, 2 layers) took 480 launches, which is too
    little to tell steps, layers and chunks apart."""
    return _work(node, _flops(node, 2))


@rule("aten._cudnn_rnn_flatten_weight")
def flattens_weights(node: OpNode, _target: Target) -> Work:
    """Zero the buffer, copy each weight into it (RNN.cpp)."""
    weights = [tensor for tensor in node.inputs if isinstance(tensor, TensorMeta)]
    return streaming(node, kernels=1, memcpys=len(weights), kind="copy")
