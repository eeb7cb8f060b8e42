# ruff: noqa: ARG001  # signatures are those of torch
# torch leaves these functions untyped:
# mypy: disable-error-code="no-untyped-call"
"""cuDNN's recurrent networks and CUDA's fused cells on the CPU.

A network's backward runs torch's own network again and differentiates it: cuDNN's reserve buffer, which holds what
the kernel wants to remember, here holds only the seed of the dropout between layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optrace.tracing.standin import recurrent
from optrace.tracing.standin.shapes import SHAPES

aten = torch.ops.aten

_PLAIN = {
    recurrent.RNN_RELU: aten.rnn_relu.input,
    recurrent.RNN_TANH: aten.rnn_tanh.input,
    recurrent.LSTM: aten.lstm.input,
    recurrent.GRU: aten.gru.input,
}
_PACKED = {
    recurrent.RNN_RELU: aten.rnn_relu.data,
    recurrent.RNN_TANH: aten.rnn_tanh.data,
    recurrent.LSTM: aten.lstm.data,
    recurrent.GRU: aten.gru.data,
}
_SEED_BYTES = 8  # of an int64


def _network(
    input: Tensor,
    weights: Sequence[Tensor],
    per_layer: int,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    projection: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    seed: int,
) -> Sequence[Tensor]:
    """Output, hidden state and, of an LSTM, cell state."""
    has_biases = per_layer - (1 if projection else 0) == 4
    state = [hx] if mode == recurrent.LSTM and cx is None else hx if cx is None else [hx, cx]
    options = (list(weights), has_biases, layers, dropout, train, bidirectional)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if batch_sizes:
            out: Sequence[Tensor] = _PACKED[mode](input, torch.tensor(batch_sizes), state, *options)
        else:
            out = _PLAIN[mode](input, state, *options, batch_first)
    return out


def cudnn_rnn(
    input: Tensor,
    weight: Sequence[Tensor],
    per_layer: int,
    buffer: Any,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden: int,
    projection: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Any,
) -> Sequence[Any]:
    """`aten::_cudnn_rnn`."""
    seed = (
        torch.randint(2**62, (1,)) if train and dropout and layers > 1 else torch.zeros(1, dtype=torch.int64)
    )
    shape = (mode, projection, layers, batch_first, dropout, train, bidirectional, batch_sizes)
    out = _network(input, weight, per_layer, hx, cx, *shape, int(seed))
    described = SHAPES[aten._cudnn_rnn.default](
        *(input, weight, per_layer, None, hx, cx, mode, hidden, projection, layers, batch_first),
        *(dropout, train, bidirectional, batch_sizes, None),
    )
    reserve = torch.zeros(described[3].shape, dtype=torch.uint8)
    if train:
        reserve[:_SEED_BYTES] = seed.view(torch.uint8)
    return out[0], out[1], out[2] if cx is not None else None, reserve, None


def _differentiated() -> Any:
    """Autograd, which is off where kernels run."""
    off = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther"):
        off = off.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), off)


def cudnn_rnn_backward(
    input: Tensor,
    weight: Sequence[Tensor],
    per_layer: int,
    buffer: Any,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden: int,
    projection: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Any,
    reserve: Tensor,
    mask: Sequence[bool],
) -> Sequence[Any]:
    """`aten::_cudnn_rnn_backward`."""
    seed = int(reserve[:_SEED_BYTES].clone().view(torch.int64))
    shape = (mode, projection, layers, batch_first, dropout, train, bidirectional, batch_sizes)
    leaves = [t.detach().requires_grad_() for t in (input, hx, *([] if cx is None else [cx]), *weight)]
    states = 2 if cx is None else 3
    with torch.enable_grad(), _differentiated():
        out = _network(
            *(leaves[0], leaves[states:], per_layer, leaves[1], None if cx is None else leaves[2], *shape),
            seed,
        )
        given = zip(out, (grad_output, grad_hy, grad_cy), strict=False)
        pairs = [(o, g) for o, g in given if g is not None]
        grads = torch.autograd.grad(
            [o for o, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True, materialize_grads=True
        )
    return grads[0], grads[1], grads[2] if cx is not None else None, list(grads[states:]) if mask[3] else []


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Sequence[Tensor]:
    """`aten::_thnn_fused_lstm_cell`: hidden state, cell state, and the gates for the backward."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> Sequence[Any]:
    """`aten::_thnn_fused_lstm_cell_backward_impl`: gradients of the gates, the cell state and the bias."""
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_h = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad_c = grad_h * o * (1 - squashed.square())
    if grad_cy is not None:
        grad_c = grad_c + grad_cy
    gates = torch.cat(
        (
            grad_c * g * i * (1 - i),
            grad_c * cx * f * (1 - f),
            grad_c * i * (1 - g.square()),
            grad_h * squashed * o * (1 - o),
        ),
        1,
    )
    return gates, grad_c * f, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> Sequence[Tensor]:
    """`aten::_thnn_fused_gru_cell`: hidden state, and the gates, the old state and the hidden part for the backward."""
    from_input, from_hidden = _biased(input_gates, input_bias), _biased(hidden_gates, hidden_bias)
    (ir, ii, inew), (hr, hi, hnew) = from_input.chunk(3, 1), from_hidden.chunk(3, 1)
    reset, update = (ir + hr).sigmoid(), (ii + hi).sigmoid()
    new = (inew + reset * hnew).tanh()
    return new + update * (hx - new), torch.cat((reset, update, new, hx, hnew), 1)


def gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> Sequence[Any]:
    """`aten::_thnn_fused_gru_cell_backward`: gradients of both gates, the hidden state and both biases."""
    reset, update, new, hx, hnew = workspace.chunk(5, 1)
    grad_new = grad_hy * (1 - update) * (1 - new.square())
    grad_update = grad_hy * (hx - new) * update * (1 - update)
    grad_reset = grad_new * hnew * reset * (1 - reset)
    of_input = torch.cat((grad_reset, grad_update, grad_new), 1)
    of_hidden = torch.cat((grad_reset, grad_update, grad_new * reset), 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad_hy * update, *biases
