"""Recurrent layers (cuDNN's standard algorithm) and the encoder fast path: many launches behind one op."""

from __future__ import annotations

import math
from collections.abc import Sequence

from optrace.cost.device.attention import fused_forward
from optrace.cost.device.kernel import MEMSET, SMALL, Kernel, Launch, Product, launches
from optrace.cost.device.products import product
from optrace.cost.device.reductions import reducing
from optrace.cost.device.streams import STRIDED_BLOCK, copy, over
from optrace.cost.profiles import Target
from optrace.cost.rules.attention import Shape
from optrace.cost.rules.cudnn_rnn import GATES
from optrace.cost.rules.encoder import applies_gelu, copies_data, linear_gemm, uses_cudnn
from optrace.cost.rules.gemm import Gemm
from optrace.cost.rules.layouts import contiguous
from optrace.cost.rules.recurrent import bias_sums, network_of
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


@launches("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
def sequence(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    """A product and a pointwise kernel a step, one after the other; what is left, products over many steps at once."""
    network = network_of(node)
    backward = "backward" in node.op
    launched = work.launches or 0
    rows = network.steps * network.batch
    gates = GATES[network.mode] * network.hidden
    if network.algorithm(target, forward=not backward) != "standard":
        loop = Kernel("persistent_cell", 0.0, 0.0, float(network.steps), count=network.stacks)
        return [loop, *[SMALL] * max(0, launched - network.stacks)]
    cells = network.steps * network.stacks
    tail = "_backward" if backward else ""
    # Blocks of 64 x 64 results; each weight is read a step.
    depth = float(gates if backward else network.hidden)
    tiles = math.ceil(network.batch / 64) * math.ceil((network.hidden if backward else gates) / 64)
    step = Kernel(
        "cell_product" + tail, float(network.hidden * gates * network.itemsize), tiles, depth, count=cells
    )
    others = max(0, launched - work.memsets - work.memcpys - 2 * cells)
    large = min(others, network.stacks)
    size = network.itemsize
    gemm = Gemm(rows, gates, network.hidden, network.dtype, right_transposed=True)
    nbytes = float(size * (gemm.m * gemm.k + gemm.n * gemm.k + gemm.m * gemm.n))
    inputs = Product(
        "conv_pointwise", target.convolution_dtype(network.dtype), rows, gates, network.hidden, 1, nbytes
    )
    return [
        step,
        Kernel("cell" + tail, float(network.batch * gates * size), 0.0, 0.0, count=cells),
        *[inputs] * (large * (2 if backward else 1)),
        *[SMALL] * max(0, others - large * (2 if backward else 1)),
        *[MEMSET] * work.memsets,
        *[Kernel("memcpy")] * work.memcpys,
    ]


@launches("aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell")
def cell(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    return [_gates(work.tensor_bytes, node.outputs[0])]


def _gates(nbytes: float, states: TensorMeta) -> Kernel:
    """A thread a hidden unit loads each of its gates."""
    return Kernel("strided", float(nbytes), states.numel / STRIDED_BLOCK, nbytes / max(1, states.nbytes))


@launches("aten._thnn_fused_lstm_cell_backward_impl", "aten._thnn_fused_gru_cell_backward")
def cell_backward(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    """The gates' gradients, and their sums over the batch."""
    gates = bias_sums(node)
    sums = [launch for gradient in gates for launch in reducing(gradient, (0,), target)]
    nbytes = work.tensor_bytes - sum(gradient.shape[-1] * gradient.itemsize for gradient in gates)
    states = next(tensor for tensor in node.inputs if len(tensor.shape) == 2)
    return [_gates(nbytes, states), *sums]


def _linear(rows: int, n: int, k: int, data: TensorMeta, target: Target) -> list[Launch]:
    size = data.itemsize
    gemm = linear_gemm(rows, n, k, data.dtype)
    return product(gemm, float(size * (rows * k + n * k + rows * n)), target, size)


def _attention(data: TensorMeta, width: int, heads: int, target: Target) -> list[Launch]:
    batch, length = (data.shape[0], data.shape[1]) if len(data.shape) == 3 else (1, data.shape[0])
    head = width // heads
    shape = Shape(batch, heads, heads, length, length, head, head)
    rows = batch * length
    cudnn = uses_cudnn(data.dtype, target)
    kind = "attention_cudnn" if cudnn else "attention_efficient"
    return [
        *_linear(rows, 3 * width, width, data, target),
        *[MEMSET] * cudnn,
        fused_forward(shape, kind, data.dtype, 4.0 * rows * width * data.itemsize),
        *_linear(rows, width, width, data, target),
    ]


@launches("aten._native_multi_head_attention")
def projected_attention(node: OpNode, work: Work, target: Target) -> Sequence[Launch]:
    query, width, heads = node.tensor("query"), node.arg("embed_dim"), node.arg("num_head")
    assert isinstance(width, int)
    assert isinstance(heads, int)
    found = _attention(query, width, heads, target)
    stream = Kernel("strided", 2.0 * query.nbytes, query.numel / 512, 2)
    return [*found, *[stream] * ((work.launches or 0) - len(found))]


@launches("aten._transformer_encoder_layer_fwd")
def encoder_layer(node: OpNode, _work: Work, target: Target) -> Sequence[Launch]:
    data, width, heads = node.tensor("src"), node.arg("embed_dim"), node.arg("num_heads")
    assert isinstance(width, int)
    assert isinstance(heads, int)
    rows, hidden = data.numel // width, node.tensor("ffn_weight_1").shape[0]
    result = node.outputs[0]
    norm = Kernel("layer_norm_scaled", 2.0 * data.nbytes, rows, width / 512)
    activation = Kernel("vectorized", 2.0 * rows * hidden * data.itemsize)
    add = over(result.shape, result, result, result)
    launched = [
        *_attention(data, width, heads, target),
        over(result.shape, result, result, data),
        *_linear(rows, hidden, width, data, target),
        *[activation] * applies_gelu(node),
        *_linear(rows, width, hidden, data, target),
        add,
        norm,
        norm,
    ]
    return [copy(data, contiguous(data)), *launched] if copies_data(node) else launched
