# signatures are those of torch
# torch leaves ops and these functions untyped:
# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Recurrent networks on the pretended GPU: one cuDNN call a network instead of unrolled cells.

torch unrolls RNN, LSTM and GRU on devices without a fused kernel. On CUDA a composite op looks for the flat buffer
that holds all weights and calls `_cudnn_rnn`; `flatten` is the layout of that buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from optrace.tracing.standin.device import active_device
from optrace.tracing.standin.layout import contiguous

aten = torch.ops.aten

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)  # cudnnRNNMode_t

# cuDNN keeps a random state for each of 2048 threads of an SM, 24 bytes each.
DROPOUT_STATE_BYTES_PER_SM = 2048 * 24


class _DropoutState:
    """cuDNN's dropout state: one a device and process, made by the first RNN that trains with dropout and handed
    to every RNN from then on."""

    made = False


def uses_cudnn(t: Tensor) -> bool:
    """Whether CUDA would hand a recurrent network with this input to cuDNN."""
    dtypes = [torch.float64, torch.float32, torch.float16]
    if active_device().capability[0] >= 8:
        dtypes.append(torch.bfloat16)
    return torch.backends.cudnn.enabled and t.numel() > 0 and t.dtype in dtypes


def flat_offsets(weights: Sequence[Tensor], per_layer: int) -> tuple[list[int], int]:
    """Where cuDNN keeps each weight in the flat buffer, in elements, and the buffer's size.

    `weights` come layer by layer, `per_layer` of them: input and hidden matrix, both biases (if any), the
    projection (if any). All matrices come first, then all biases.
    """
    matrices = [i for i, w in enumerate(weights) if w.dim() > 1]
    biases = [i for i, w in enumerate(weights) if w.dim() == 1]
    offsets = [0] * len(weights)
    end = 0
    for i in matrices + biases:
        offsets[i] = end
        end += weights[i].numel()
    if not biases:  # cuDNN reserves room for biases that the caller does not have
        gates = sum(weights[i].size(0) for i in matrices if i % per_layer < 2)
        end += gates
    return offsets, end


def _weight_buffer(weights: Sequence[Tensor], per_layer: int) -> Tensor | None:
    """The flat buffer, if the weights are laid out in one; asking is visible as two calls."""
    first = weights[0]
    buffer = aten.empty.memory_format([0], dtype=first.dtype, layout=first.layout, device=first.device)
    buffer = aten.set_.source_Storage(buffer, first.untyped_storage())
    offsets, size = flat_offsets(weights, per_layer)
    if buffer.numel() < size:
        return None
    if buffer.numel() > size:
        buffer = buffer.narrow(0, 0, size)
    storage = first.untyped_storage()._cdata
    laid_out = all(
        w.untyped_storage()._cdata == storage and w.storage_offset() == offset
        for w, offset in zip(weights, offsets, strict=True)
    )
    return buffer if laid_out and weights[-1].is_contiguous() else None


def _dropout_state(input: Tensor, dropout: float, train: bool) -> Tensor | None:
    if train and dropout > 0 and not _DropoutState.made:
        _DropoutState.made = True
        aten.random_.default(aten.empty.memory_format([], dtype=torch.int64, device=input.device))
    if not _DropoutState.made:
        return None
    size = active_device().sm_count * DROPOUT_STATE_BYTES_PER_SM
    with torch.utils._python_dispatch._disable_current_modes():
        described = torch.empty(size, dtype=torch.uint8, device="meta")
    return input.fake_mode.fake_tensor_converter.from_meta_and_device(  # type: ignore[attr-defined]
        input.fake_mode,  # type: ignore[attr-defined]  # every tensor of the device is a fake tensor
        described,
        input.fake_device,  # type: ignore[attr-defined]  # likewise
    )


def _cudnn(
    mode: int,
    input: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    batch_sizes: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    hidden, projection = hx.size(2), 0
    if cx is not None and cx.size(2) != hx.size(2):
        hidden, projection = cx.size(2), hx.size(2)
    per_layer = (4 if has_biases else 2) + (1 if projection else 0)
    buffer = _weight_buffer(weights, per_layer)
    out = aten._cudnn_rnn.default(
        input,
        list(weights),
        per_layer,
        buffer,
        hx,
        cx,
        mode,
        hidden,
        projection,
        num_layers,
        batch_first,
        dropout,
        train,
        bidirectional,
        list(batch_sizes),
        _dropout_state(input, dropout, train),
    )
    return out[0], out[1], out[2]


def flatten_weight(weights: Sequence[Tensor], per_layer: int) -> Tensor:
    """`aten::_cudnn_rnn_flatten_weight` on meta tensors: the weights become views of one buffer, which is returned."""
    offsets, size = flat_offsets(weights, per_layer)
    buffer = torch.empty(size, dtype=weights[0].dtype, device="meta")
    storage = buffer.untyped_storage()
    for weight, offset in zip(weights, offsets, strict=True):
        weight.set_(storage, offset, weight.shape, contiguous(weight.shape))
    return buffer


def pad_packed_sequence(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> tuple[Tensor, Tensor]:
    """`aten::_pad_packed_sequence`: torch's loop over runs of equal batch size, which reads `batch_sizes` in C++."""
    sizes = batch_sizes.tolist()
    length = total_length if total_length > 0 else len(sizes)
    rest = data.shape[1:]
    out = aten.full.default([length, sizes[0], *rest], padding_value, dtype=data.dtype, device=data.device)
    lengths: list[int] = []
    offset = start = 0
    for step, batch in enumerate([*sizes, 0]):
        previous = sizes[step - 1] if step else batch
        if batch == previous:
            continue
        count = previous * (step - start)
        run = data.narrow(0, offset, count)
        out.narrow(0, start, step - start).narrow(1, 0, previous).copy_(
            run.view(step - start, previous, *rest)
        )
        offset, start = offset + count, step
        lengths = [step] * (previous - batch) + lengths
    host = aten.empty.memory_format([sizes[0]], dtype=torch.int64, device=torch.device("cpu"))
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        data.fake_mode.values.put(host, torch.tensor(lengths))  # type: ignore[attr-defined]  # every tensor of the device is a fake one
    return (out.transpose_(0, 1) if batch_first else out), host


def kernels() -> dict[str, Any]:
    """The composite ops of recurrent networks, by name."""

    def plain(mode: int, name: str) -> Any:
        fallback = getattr(aten, name).input

        def rnn(input: Tensor, hx: Tensor, params: list[Tensor], *rest: Any) -> tuple[Tensor, Tensor]:
            if not uses_cudnn(input):
                out: tuple[Tensor, Tensor] = fallback.decompose(input, hx, params, *rest)
                return out
            has_biases, layers, dropout, train, bidirectional, batch_first = rest
            return _cudnn(
                mode,
                input,
                hx,
                None,
                params,
                has_biases,
                layers,
                dropout,
                train,
                bidirectional,
                batch_first,
                (),
            )[:2]

        return rnn

    def packed(mode: int, name: str) -> Any:
        fallback = getattr(aten, name).data

        def rnn(data: Tensor, sizes: Tensor, hx: Tensor, params: list[Tensor], *rest: Any) -> Any:
            if not uses_cudnn(data):
                return fallback.decompose(data, sizes, hx, params, *rest)
            has_biases, layers, dropout, train, bidirectional = rest
            steps = sizes.tolist()
            return _cudnn(
                mode, data, hx, None, params, has_biases, layers, dropout, train, bidirectional, False, steps
            )[:2]

        return rnn

    def lstm(input: Tensor, hx: list[Tensor], params: list[Tensor], *rest: Any) -> Any:
        if not uses_cudnn(input):
            return aten.lstm.input.decompose(input, hx, params, *rest)
        has_biases, layers, dropout, train, bidirectional, batch_first = rest
        return _cudnn(
            LSTM,
            input,
            hx[0],
            hx[1],
            params,
            has_biases,
            layers,
            dropout,
            train,
            bidirectional,
            batch_first,
            (),
        )

    def packed_lstm(data: Tensor, sizes: Tensor, hx: list[Tensor], params: list[Tensor], *rest: Any) -> Any:
        if not uses_cudnn(data):
            return aten.lstm.data.decompose(data, sizes, hx, params, *rest)
        has_biases, layers, dropout, train, bidirectional = rest
        steps = sizes.tolist()
        return _cudnn(
            LSTM, data, hx[0], hx[1], params, has_biases, layers, dropout, train, bidirectional, False, steps
        )

    ops = {"gru": GRU, "rnn_tanh": RNN_TANH, "rnn_relu": RNN_RELU}
    table = {f"{name}.input": plain(mode, name) for name, mode in ops.items()}
    table |= {f"{name}.data": packed(mode, name) for name, mode in ops.items()}
    table |= {"lstm.input": lstm, "lstm.data": packed_lstm}
    return table | {"_pad_packed_sequence": pad_packed_sequence}
