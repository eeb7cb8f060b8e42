"""Recurrent nets: whole cuDNN sequences and fused cells."""

from __future__ import annotations

import math
from collections.abc import Iterable
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


#: FLOPs of a cell besides its products, a step and hidden unit, by ``cudnnRNNMode_t``: for each gate two biases, the
#: sum of both products and an activation; then ``f c + i g`` and ``o tanh(c)`` of an LSTM, ``r (W h)`` and
#: ``(1 - z) n + z h`` of a GRU. The backward pass takes twice as many.
CELL_FLOPS = {0: 4, 1: 4, 2: 4 * 4 + 3 + 2, 3: 3 * 4 + 1 + 4}


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """FLOPs of a sequence: of its products, and of its cells besides."""

    matmul: int
    cells: int

    @classmethod
    def of(cls, node: OpNode, weights: Iterable[TensorMeta], *, layers: int, passes: int) -> _Arithmetic:
        """``weights`` of ``layers`` layers (two a layer of two directions). Every weight meets every step and
        sample once a pass, a multiply and an add; a backward pass has two, one for the gradients of the data and
        one for those of the weights."""
        rows = math.prod(node.inputs[0].shape[:-1])
        elements = sum(weight.numel for weight in weights if len(weight.shape) > 1)
        mode, hidden = node.arg("mode"), node.arg("hidden_size")
        assert isinstance(mode, int)
        assert isinstance(hidden, int)
        return cls(passes * 2 * rows * elements, passes * rows * layers * hidden * CELL_FLOPS[mode])


def _of_network(node: OpNode, passes: int) -> _Arithmetic:
    layers = node.arg("num_layers")
    assert isinstance(layers, int)
    both = 2 if node.arg("bidirectional") else 1
    return _Arithmetic.of(node, node.tensors("weight"), layers=layers * both, passes=passes)


def _work(node: OpNode, flops: _Arithmetic) -> Work:
    return Work(
        kernels=None,
        reads=tuple(inputs_read(node)),
        writes=tuple(outputs_written(node)),
        flops=flops.matmul + flops.cells,
        matmul_flops=flops.matmul,
        kind="matmul",
        math_dtype=node.inputs[0].dtype,
        source="unknown",
    )


@rule("aten.mkldnn_rnn_layer")
def cpu_layer(node: OpNode, _target: Target) -> Work:
    """One layer and direction on the CPU (mkldnn/RNN.cpp): its arithmetic, no launch."""
    return _work(node, _Arithmetic.of(node, node.inputs[1:5], layers=1, passes=1))


@rule("aten.mkldnn_rnn_layer_backward")
def cpu_layer_backward(node: OpNode, _target: Target) -> Work:
    return _work(node, _Arithmetic.of(node, node.inputs[1:5], layers=1, passes=2))


@rule("aten._cudnn_rnn")
def cudnn_sequence(node: OpNode, _target: Target) -> Work:
    """cuDNN's standard algorithm: a GEMM and a pointwise kernel a step, layer and direction, and GEMMs for the
    inputs of many steps at once.

    A model of cuDNN, not its source: of six recorded calls (LSTM and GRU, one and two directions) five are
    exact and one is 2 launches high in 12,310. Half precision may take persistent kernels, packed sequences others:
    not known.
    """
    work = _work(node, _of_network(node, 1))
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
    return _work(node, _of_network(node, 2))


@rule("aten._cudnn_rnn_flatten_weight")
def flattens_weights(node: OpNode, _target: Target) -> Work:
    """Zero the buffer, copy each weight into it (RNN.cpp)."""
    weights = [tensor for tensor in node.inputs if isinstance(tensor, TensorMeta)]
    return streaming(node, kernels=1, memcpys=len(weights), kind="copy")
