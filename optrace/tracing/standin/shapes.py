# ruff: noqa: ARG001  # signatures are those of torch
"""Shape functions that FakeTensorMode lacks or gets wrong for CUDA.

Each returns what the CUDA kernel returns for inputs on the pretended GPU: shapes, strides, dtypes, and the device
where it is not the inputs'. `Out` describes a tensor; the mode makes it. An op is listed only where torch's own
shape function is missing on a build without CUDA or was found to differ from an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from optrace.tracing.standin import recurrent
from optrace.tracing.standin.device import active_device
from optrace.tracing.standin.layout import contiguous, dense, in_format, permuted

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Out:
    """A tensor to be made: strides are contiguous unless given, the device is the inputs' unless given."""

    shape: Sequence[int]
    dtype: torch.dtype
    stride: Sequence[int] | None = None
    device: str | None = None
    within: Within | None = None  # the place in a shared buffer


@dataclass(frozen=True, slots=True)
class Within:
    """A place in a buffer that several outputs share."""

    buffer: Out
    offset: int


Shape = Callable[..., Any]

SHAPES: dict[Any, Shape] = {}


def _shape_of(name: str) -> Callable[[Shape], Shape]:
    """Register the shape function of `aten.<name>`."""

    def register(function: Shape) -> Shape:
        base, _, overload = name.partition(".")
        SHAPES[getattr(getattr(aten, base), overload or "default")] = function
        return function

    return register


def like(t: Tensor, dtype: torch.dtype | None = None) -> Out:
    """What `empty_like` makes: the same strides if they are dense, else dense ones in the same order."""
    strides: Sequence[int] = t.stride()
    if not dense(t):
        strides = torch._prims_common.compute_elementwise_output_strides(t)
    return Out(tuple(t.shape), dtype or t.dtype, strides)


# ---- convolution


def _conv_format(a: Tensor, b: Tensor) -> torch.memory_format:
    """cuDNN works in channels-last order if either tensor is laid out so."""
    if a.dim() < 4 or a.dtype == torch.float64:
        return torch.contiguous_format
    formats = (suggest_memory_format(a), suggest_memory_format(b))
    for channels_last in (torch.channels_last, torch.channels_last_3d):
        if channels_last in formats:
            return channels_last
    return torch.contiguous_format


@_shape_of("convolution")
def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Out:
    spatial = input.dim() - 2

    def each(values: list[int]) -> list[int]:
        return list(values) * spatial if len(values) == 1 else list(values)

    stride, padding, dilation, output_padding = map(each, (stride, padding, dilation, output_padding))
    channels = weight.size(1) * groups if transposed else weight.size(0)
    shape = [input.size(0), channels]
    for i in range(spatial):
        size, span = input.size(i + 2), dilation[i] * (weight.size(i + 2) - 1)
        if transposed:
            shape.append((size - 1) * stride[i] - 2 * padding[i] + span + output_padding[i] + 1)
        else:
            shape.append((size + 2 * padding[i] - span - 1) // stride[i] + 1)
    if min(shape[2:], default=1) <= 0 or input.size(1) != (
        weight.size(0) if transposed else weight.size(1) * groups
    ):
        raise RuntimeError(
            f"convolution of an input of shape {list(input.shape)} with a weight of shape {list(weight.shape)} "
            f"(stride {stride}, padding {padding}, dilation {dilation}, groups {groups}) has no valid output"
        )
    return Out(shape, input.dtype, in_format(shape, _conv_format(input, weight)))


@_shape_of("convolution_backward")
def _convolution_backward(
    grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: list[int] | None, *rest: Any
) -> tuple[Out | None, Out | None, Out | None]:
    mask = rest[-1]
    # cuDNN's backward brings the output's gradient into the input's order first.
    order = _conv_format(input, weight)
    grad_input = Out(tuple(input.shape), grad.dtype, in_format(input.shape, order))
    grad_weight = Out(tuple(weight.shape), grad.dtype, in_format(weight.shape, order))
    return (
        grad_input if mask[0] else None,
        grad_weight if mask[1] else None,
        Out(bias_sizes or [], grad.dtype) if mask[2] else None,
    )


# ---- grouped matrix products

ROW_ALIGNMENT_BYTES = 16  # the kernel pads the rows of its output to this


@_shape_of("_grouped_mm")
def _grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Out:
    groups = [offs.size(0)] if offs is not None and a.dim() == b.dim() == 2 else []
    if a.dim() == b.dim() == 3:
        groups = [a.size(0)]
    dtype = out_dtype or a.dtype
    multiple = ROW_ALIGNMENT_BYTES // dtype.itemsize
    rows, columns = a.size(-2), b.size(-1)
    row = math.ceil(columns / multiple) * multiple
    shape = [*groups, rows, columns]
    return Out(shape, dtype, (rows * row, row, 1) if groups else (row, 1))


# ---- normalization


@_shape_of("cudnn_batch_norm")
def _cudnn_batch_norm(
    input: Tensor, weight: Tensor, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Any:
    channels = [input.size(1)] if training else [0]
    out = Out(tuple(input.shape), input.dtype, in_format(input.shape, suggest_memory_format(input)))
    return out, Out(channels, weight.dtype), Out(channels, weight.dtype), Out([0], torch.uint8)


@_shape_of("cudnn_batch_norm_backward")
def _cudnn_batch_norm_backward(input: Tensor, grad: Tensor, weight: Tensor, *rest: Any) -> Any:
    grad_input = Out(tuple(input.shape), input.dtype, in_format(input.shape, suggest_memory_format(input)))
    return grad_input, like(weight), like(weight)


@_shape_of("native_batch_norm_backward")
def _native_batch_norm_backward(grad: Tensor, input: Tensor, weight: Tensor | None, *rest: Any) -> Any:
    mask = rest[-1]
    channels, dtype = [input.size(1)], input.dtype if weight is None else weight.dtype
    return (
        like(input) if mask[0] else None,
        Out(channels, dtype) if mask[1] else None,
        Out(channels, dtype) if mask[2] else None,
    )


@_shape_of("_fused_rms_norm")
def _fused_rms_norm(input: Tensor, normalized_shape: list[int], weight: Any, eps: Any) -> Any:
    kept = input.dim() - len(normalized_shape)
    statistics = [*input.shape[:kept], *(1 for _ in normalized_shape)]
    accumulate = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
    return Out(tuple(input.shape), input.dtype), Out(statistics, accumulate)


@_shape_of("_fused_rms_norm_backward")
def _fused_rms_norm_backward(
    grad: Tensor, input: Tensor, normalized_shape: Any, rstd: Any, weight: Tensor | None, mask: list[bool]
) -> Any:
    grad_weight = Out(tuple(weight.shape), weight.dtype) if weight is not None and mask[1] else None
    return (Out(tuple(input.shape), input.dtype) if mask[0] else None), grad_weight


# ---- attention


def _attention_layout(query: Tensor, value: Tensor) -> Out:
    """cuDNN writes its output in the order of the query's dimensions."""
    shape = (*query.shape[:3], value.size(-1))
    if tuple(query.shape) == shape:
        return like(query)
    order = sorted(range(4), key=lambda dim: query.stride(dim), reverse=True)
    return Out(shape, query.dtype, permuted(shape, order))


@_shape_of("_scaled_dot_product_cudnn_attention")
def _cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, compute_log_sumexp: bool, *rest: Any, **kwargs: Any
) -> Any:
    batch, heads, length = query.shape[:3]
    logsumexp = Out([batch, heads, length, 1], torch.float32) if compute_log_sumexp else None
    seed = Out([], torch.int64)
    return _attention_layout(query, value), logsumexp, None, None, length, key.size(2), seed, seed, None


@_shape_of("_scaled_dot_product_efficient_attention")
def _efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Any, compute_log_sumexp: bool, *rest: Any, **kwargs: Any
) -> Any:
    batch, heads, length = query.shape[:3]
    shape = (batch, heads, length, value.size(-1))
    rows = math.ceil(length / 32) * 32 if compute_log_sumexp else 0
    seed = Out([], torch.int64, device="cpu")
    return (
        Out(shape, query.dtype, permuted(shape, (0, 2, 1, 3))),
        Out([batch, heads, rows], torch.float32),
        seed,
        seed,
    )


@_shape_of("_native_multi_head_attention")
def _native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    batch, length = query.shape[:2]
    weights = [batch, length, length] if average_attn_weights else [batch, num_head, length, length]
    out = Out([batch, length, embed_dim], query.dtype)
    return out, Out(weights, query.dtype) if need_weights else None


@_shape_of("_transformer_encoder_layer_fwd")
def _transformer_encoder_layer_fwd(src: Tensor, *rest: Any, **kwargs: Any) -> Out:
    return Out(tuple(src.shape), src.dtype)


# ---- sampling


@_shape_of("cudnn_grid_sampler")
def _cudnn_grid_sampler(input: Tensor, grid: Tensor) -> Out:
    return Out([input.size(0), input.size(1), grid.size(1), grid.size(2)], input.dtype)


@_shape_of("cudnn_grid_sampler_backward")
def _cudnn_grid_sampler_backward(input: Tensor, grid: Tensor, grad: Tensor) -> Any:
    return Out(tuple(input.shape), input.dtype), Out(tuple(grid.shape), grid.dtype)


# ---- recurrent networks

# What cuDNN 9.19 keeps of each step for the backward, in hidden states: measured for LSTM and GRU.
_KEPT_STATES = {recurrent.LSTM: 5, recurrent.GRU: 6, recurrent.RNN_TANH: 1, recurrent.RNN_RELU: 1}


@_shape_of("_cudnn_init_dropout_state")
def _cudnn_init_dropout_state(dropout: float, train: bool, dropout_seed: int, **kwargs: Any) -> Out:
    return Out([active_device().sm_count * recurrent.DROPOUT_STATE_BYTES_PER_SM], torch.uint8)


def _flat_buffer(weights: Sequence[Tensor], per_layer: int) -> tuple[Out, list[int]]:
    offsets, size = recurrent.flat_offsets(weights, per_layer)
    return Out([size], weights[0].dtype), offsets


@_shape_of("_cudnn_rnn")
def _cudnn_rnn(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
) -> Any:
    directions = 2 if bidirectional else 1
    width = (proj_size or hidden_size) * directions
    if batch_sizes:
        batch, rows = batch_sizes[0], input.size(0)
        out = Out([rows, width], input.dtype)
    else:
        length, batch = (input.size(1), input.size(0)) if batch_first else (input.size(0), input.size(1))
        rows = length * batch
        stride = contiguous([length, batch, width])
        if batch_first:
            out = Out([batch, length, width], input.dtype, (stride[1], stride[0], stride[2]))
        else:
            out = Out([length, batch, width], input.dtype, stride)
    hidden = Out([num_layers * directions, batch, proj_size or hidden_size], input.dtype)
    cell = (
        Out([0], input.dtype)
        if cx is None
        else Out([num_layers * directions, batch, hidden_size], input.dtype)
    )
    reserve = 0
    if train:
        state = rows * hidden_size * directions * input.element_size()  # one hidden state of every step
        states = num_layers * _KEPT_STATES[mode] + num_layers - 1
        mask_bits = rows * hidden_size * directions * (num_layers - 1) if dropout > 0 else 0
        reserve = states * state + math.ceil(mask_bits / 8 / 256) * 256 + 256
    buffer = weight_buf if weight_buf is not None else _flat_buffer(weight, weight_stride0)[0]
    return out, hidden, cell, Out([reserve], torch.uint8), buffer


@_shape_of("_cudnn_rnn_backward")
def _cudnn_rnn_backward(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Tensor | None,
    reserve: Tensor,
    mask: list[bool],
) -> Any:
    shape = tuple(input.shape)
    if batch_first and not batch_sizes:
        stride = contiguous((shape[1], shape[0], shape[2]))
        grad_input = Out(shape, input.dtype, (stride[1], stride[0], stride[2]))
    else:
        grad_input = Out(shape, input.dtype)
    grad_cell = Out([0], input.dtype) if cx is None else Out(tuple(cx.shape), cx.dtype)
    grads: list[Out] = []
    if mask[3]:
        buffer, offsets = _flat_buffer(weight, weight_stride0)
        grads = [
            Out(tuple(w.shape), w.dtype, within=Within(buffer, offset))
            for w, offset in zip(weight, offsets, strict=True)
        ]
    return grad_input, Out(tuple(hx.shape), hx.dtype), grad_cell, grads


@_shape_of("native_layer_norm_backward")
def _native_layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> Any:
    """The kernel works on a contiguous copy, whose layout the gradient has."""
    grads = [Out(tuple(input.shape), input.dtype)]
    grads += [Out(tuple(normalized_shape), (input if t is None else t).dtype) for t in (weight, bias)]
    return tuple(grad if wanted else None for grad, wanted in zip(grads, output_mask, strict=True))


@_shape_of("_thnn_fused_lstm_cell")
def _thnn_fused_lstm_cell(input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, *biases: Any) -> Any:
    return like(cx), like(cx), Out(tuple(input_gates.shape), input_gates.dtype)


@_shape_of("_thnn_fused_gru_cell")
def _thnn_fused_gru_cell(input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, *biases: Any) -> Any:
    return like(hx), Out([hx.size(0), hx.size(1) * 5], hx.dtype)


@_shape_of("_thnn_fused_gru_cell_backward")
def _thnn_fused_gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    gates = Out([grad_hy.size(0), grad_hy.size(1) * 3], workspace.dtype)
    bias = Out([grad_hy.size(1) * 3], workspace.dtype) if has_bias else None
    return gates, gates, like(grad_hy), bias, bias
