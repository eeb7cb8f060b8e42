"""Recurrent nets: whole cuDNN sequences and fused cells."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from optrace.cost.profiles import Target
from optrace.cost.rules.cudnn_rnn import GATES, LSTM, Launches, Network
from optrace.cost.rules.reduce_config import reduction
from optrace.cost.rules.table import elements_written, inputs_read, outputs_written, rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta, Value


@rule("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def fused_cell(node: OpNode, _target: Target) -> Work:
    """The gates after their GEMMs, about 10 FLOPs an output element (RNN.cu)."""
    return streaming(node, flops=10 * elements_written(node), kind="elementwise")


@rule("aten._thnn_fused_lstm_cell_backward_impl", "aten._thnn_fused_gru_cell_backward")
def fused_cell_backward(node: OpNode, target: Target) -> Work:
    """The gates' gradients in one kernel; those of the biases are sums of them over the batch (RNN.cu): one for both of an
    LSTM's, one each of a GRU's."""
    gates = bias_sums(node)
    sums = [reduction(gradient, (0,), target) for gradient in gates]
    biases = sum(gradient.shape[-1] for gradient in gates)
    return streaming(
        node,
        kernels=1 + sum(made.kernels for made in sums),
        memsets=sum(made.memsets for made in sums),
        flops=10 * (elements_written(node) - biases) + sum(gradient.numel for gradient in gates),
        kind="elementwise",
    )


def bias_sums(node: OpNode) -> tuple[TensorMeta, ...]:
    """The gradients of gates that a cell's backward pass sums up over the batch."""
    if not node.arg("has_bias"):
        return ()
    return node.outputs[: 1 if "lstm" in node.op else 2]


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


def _arithmetic_of(node: OpNode, passes: int) -> _Arithmetic:
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


def network_of(node: OpNode) -> Network:
    """The sizes of a ``_cudnn_rnn`` call, forward or backward."""
    data, layers, hidden, mode = (
        node.inputs[0], node.arg("num_layers"), node.arg("hidden_size"), node.arg("mode")
    )  # fmt: skip
    assert isinstance(layers, int)
    assert isinstance(hidden, int)
    assert isinstance(mode, int)
    sizes = node.arg("batch_sizes")
    packed = False
    if isinstance(sizes, tuple) and sizes and isinstance(sizes[0], int):
        # Packed sequences are [rows, features], with the rows of each step.
        packed, steps, batch = True, len(sizes), sizes[0]
    else:
        batch, steps = data.shape[:2] if node.arg("batch_first") else data.shape[1::-1]
    return Network(
        mode=mode,
        steps=steps,
        batch=batch,
        inputs=data.shape[-1],
        hidden=hidden,
        layers=layers,
        directions=2 if node.arg("bidirectional") else 1,
        dtype=data.dtype,
        itemsize=data.itemsize,
        drops=bool(node.arg("dropout")) and bool(node.arg("train")),
        packed=packed,
    )


def _copied(node: OpNode, network: Network, *tensors: Value) -> list[int]:
    """Bytes of the tensors that are copied to lie step by step: those that do not, of ``batch_first`` nets."""
    if network.packed or not node.arg("batch_first"):
        return []
    return [
        tensor.numel * tensor.itemsize
        for tensor in tensors
        if isinstance(tensor, TensorMeta) and not _step_by_step(tensor)
    ]


def _step_by_step(tensor: TensorMeta) -> bool:
    batch, steps, features = tensor.shape
    across, along, each = tensor.stride
    return (
        (features == 1 or each == 1)
        and (batch == 1 or across == features)
        and (steps == 1 or along == batch * features)
    )


def _of_cudnn(node: OpNode, flops: _Arithmetic, network: Network, launches: Launches, reserved: int) -> Work:
    if node.arg("proj_size"):
        return _work(node, flops)  # another structure, seen once
    gates = network.steps * network.batch * network.stacks * GATES[network.mode] * network.hidden
    return replace(
        _work(node, flops),
        kernels=launches.kernels,
        memcpys=launches.memcpys,
        memsets=launches.memsets,
        scratch=(gates * network.itemsize,),
        reserved=reserved,
        source="rule",
    )


@rule("aten._cudnn_rnn")
def cudnn_sequence(node: OpNode, target: Target) -> Work:
    """A whole net over whole sequences (cudnn/RNN.cpp); ``cudnn_rnn`` says how. Weights that lie in no buffer (those
    in bfloat16) are copied into a zeroed one first. The activations of the gates are written and read once."""
    network = network_of(node)
    made = network.forward(target)
    copied = _copied(node, network, node.inputs[0])
    unflattened = node.arg("weight_buf") is None
    launches = Launches(
        made.kernels + len(copied) + unflattened,
        made.memcpys + unflattened * len(node.tensors("weight")),
        made.memsets,
    )
    reserved = network.workspace_bytes(target, forward=True) + sum(copied)
    return _of_cudnn(node, _arithmetic_of(node, 1), network, launches, reserved)


@rule("aten._cudnn_rnn_backward")
def cudnn_sequence_backward(node: OpNode, target: Target) -> Work:
    """Gradients of data and states, then of the weights, into one zeroed buffer. Gradients that nobody gave are
    zeros; the input is copied for either part, where it does not lie step by step."""
    network = network_of(node)
    wanted = node.arg("output_mask")
    weights = bool(wanted[3]) if isinstance(wanted, tuple) else True
    made = network.backward(target, weights=weights)
    given = _copied(node, network, node.arg("grad_output"))
    copied = _copied(node, network, node.inputs[0])
    states = ("hx", "cx") if network.mode == LSTM else ("hx",)
    zeros = [
        state.numel * state.itemsize
        for name, state in zip(("grad_hy", "grad_cy"), map(node.arg, states), strict=False)
        if node.arg(name) is None and isinstance(state, TensorMeta)
    ]
    launches = Launches(
        made.kernels + len(given) + len(copied) * (1 + weights) + len(zeros) + weights,
        made.memcpys,
        made.memsets,
    )
    reserved = network.workspace_bytes(target, forward=False) + sum((*given, *copied, *zeros))
    return _of_cudnn(node, _arithmetic_of(node, 1 + weights), network, launches, reserved)


@rule("aten._cudnn_rnn_flatten_weight")
def flattens_weights(node: OpNode, _target: Target) -> Work:
    """Zero the buffer, copy each weight into it (RNN.cpp)."""
    weights = [tensor for tensor in node.inputs if isinstance(tensor, TensorMeta)]
    return streaming(node, kernels=1, memcpys=len(weights), kind="copy")
