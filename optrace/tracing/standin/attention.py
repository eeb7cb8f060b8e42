# torch leaves ops and these functions untyped:
# mypy: disable-error-code="no-untyped-call,no-any-return"
"""Which kernel `scaled_dot_product_attention` uses on the pretended GPU.

In torch the choice is made in C++ for CUDA tensors only; other devices decompose attention into matmuls and a
softmax. Here the rule of `sdp_utils.cpp` is restated for shapes, dtypes, masks, dropout and grad state, and the
chosen op is called in its place. Its shape function and derivative are torch's own.

The rule moved between releases; `Rules` holds what moved. cuDNN's version decides too: where no CUDA wheel is
installed, the version that the release's CUDA wheel ships is assumed.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from optrace.tracing.standin.device import StandinDevice, active_device

aten = torch.ops.aten

HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Rules:
    """What changed in the choice from release to release."""

    cudnn: int  # version of cuDNN, as `torch.backends.cudnn.version()` gives it
    fused_takes_one_kv_head: bool  # one key/value head is broadcast without enable_gqa's divisibility rule
    efficient_takes_gqa: bool
    cudnn_dropout_in_sixteenths: bool
    efficient_checks_offsets: bool  # storage offsets must be aligned for the memory-efficient kernel
    unbatched: bool  # 3-D inputs get a batch dimension instead of the math kernel


def rules(torch_version: tuple[int, int], cudnn: int | None) -> Rules:
    """The rules of a release; `cudnn` is None where it is not installed."""
    since_2_14 = torch_version >= (2, 14)
    return Rules(
        cudnn=cudnn or (92400 if since_2_14 else 91900),
        fused_takes_one_kv_head=since_2_14,
        efficient_takes_gqa=since_2_14,
        cudnn_dropout_in_sixteenths=since_2_14,
        efficient_checks_offsets=since_2_14,
        unbatched=since_2_14,
    )


def _installed() -> Rules:
    major, minor = torch.__version__.split(".")[:2]
    return rules((int(major), int(minor)), torch.backends.cudnn.version())


RULES = _installed()


@dataclass(frozen=True, slots=True)
class Query:
    """The arguments that the choice depends on."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    dropout: float
    causal: bool
    gqa: bool

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and (
            self.q.requires_grad or self.k.requires_grad or self.v.requires_grad
        )


def _same_dtype(a: Query, allowed: tuple[torch.dtype, ...]) -> bool:
    return a.q.dtype == a.k.dtype == a.v.dtype and a.q.dtype in allowed


def _four_dims(a: Query) -> bool:
    return a.q.dim() == a.k.dim() == a.v.dim() == 4


def _nonempty(a: Query) -> bool:
    return a.q.size(-2) != 0 and a.k.size(-2) != 0


def _unit_last_stride(a: Query, *, ignore_singleton: bool) -> bool:
    inputs = a.q.stride(-1) == a.k.stride(-1) == a.v.stride(-1) == 1
    if ignore_singleton:
        inputs = inputs or a.q.size(-1) == 1
    return inputs and (a.mask is None or a.mask.stride(-1) == 1)


def _batch_and_heads(a: Query, r: Rules, *, gqa: bool, same_kv_heads: bool) -> bool:
    if not a.q.size(0) == a.k.size(0) == a.v.size(0):
        return False
    q, k, v = a.q.size(-3), a.k.size(-3), a.v.size(-3)
    if a.gqa and gqa:
        if same_kv_heads and k != v:
            return False
        return k > 0 and v > 0 and q % k == 0 and (same_kv_heads or q % v == 0)
    if q == k == v:
        return True
    return r.fused_takes_one_kv_head and q > 0 and k == v == 1


def _mask_shape(a: Query) -> bool:
    """The masks that cuDNN takes."""
    m = a.mask
    if m is None:
        return True
    if m.requires_grad or m.dim() not in (2, 4):
        return False
    if m.size(-2) not in (1, a.q.size(2)) or m.size(-1) not in (1, a.k.size(2)):
        return False
    return m.dim() == 2 or (m.size(0) in (1, a.q.size(0)) and m.size(1) in (1, a.q.size(1)))


def _cudnn_head_dims(a: Query, r: Rules, capability: tuple[int, int]) -> bool:
    qk, v = a.q.size(3), a.v.size(3)
    hopper = capability == (9, 0)
    big = (hopper or capability[0] == 10) and not (capability == (10, 7) and r.cudnn <= 92500)
    limit = 128
    if r.cudnn > 92200:
        if big:
            limit = 256
            if a.needs_grad and not (max(qk, v) <= 128 or (qk, v) in ((192, 128), (256, 256))):
                return False
    elif hopper and r.cudnn >= 91000:
        limit = 256
    elif capability[0] == 10 and r.cudnn >= 91100 and (qk, v) == (192, 128):
        limit = 192
    return max(qk, v) <= limit and qk % 8 == 0 and v % 8 == 0


def _cudnn(a: Query, r: Rules, device: StandinDevice) -> bool:
    if not torch.backends.cuda.cudnn_sdp_enabled() or not (8, 0) <= device.capability <= (12, 1):
        return False
    if torch.are_deterministic_algorithms_enabled() and not (
        torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        return False
    if r.cudnn_dropout_in_sixteenths and not (a.dropout * 16).is_integer():
        return False
    return (
        _four_dims(a)
        and _same_dtype(a, HALVES)
        and _mask_shape(a)
        and _nonempty(a)
        and _unit_last_stride(a, ignore_singleton=True)
        and _batch_and_heads(a, r, gqa=True, same_kv_heads=False)
        and _cudnn_head_dims(a, r, device.capability)
        and a.k.size(2) != 1
        and not (a.q.size(2) == 1 and a.dropout != 0.0)
    )


def _flash(a: Query, r: Rules, device: StandinDevice) -> bool:
    if not torch.backends.cuda.flash_sdp_enabled() or not (8, 0) <= device.capability <= (12, 1):
        return False
    if not _four_dims(a) or a.mask is not None:
        return False
    head_dim = a.q.size(-1)
    if not head_dim == a.k.size(-1) == a.v.size(-1) or head_dim > 256:
        return False
    small = (8, 6) <= device.capability <= (8, 9) or (12, 0) <= device.capability <= (12, 1)
    if small and a.needs_grad and not (head_dim <= 192 or (a.dropout == 0.0 and head_dim > 224)):
        return False
    if a.causal and a.q.size(-2) != a.k.size(-2):
        return False
    return (
        _same_dtype(a, HALVES)
        and _batch_and_heads(a, r, gqa=True, same_kv_heads=True)
        and _nonempty(a)
        and _unit_last_stride(a, ignore_singleton=True)
    )


def _gemm_alignment(a: Query, capability: tuple[int, int]) -> int:
    half = a.q.dtype in HALVES
    alignment = 4 if capability[0] >= 8 else 1
    if capability[0] >= 8 or (capability[0] >= 7 and half):
        alignment = max(alignment, 128 // (16 if half else 32))
    return alignment


def _efficient(a: Query, r: Rules, device: StandinDevice) -> bool:
    if not torch.backends.cuda.mem_efficient_sdp_enabled() or not (5, 0) <= device.capability <= (12, 1):
        return False
    if not _four_dims(a):
        return False
    alignment = _gemm_alignment(a, device.capability)
    qk, v = a.q.size(-1), a.v.size(-1)
    if qk != a.k.size(-1) or qk == 0 or v == 0 or qk % alignment or v % alignment:
        return False
    checks_offsets = r.efficient_checks_offsets and device.capability[0] >= 8
    if checks_offsets and any(t.numel() and t.storage_offset() % alignment for t in (a.q, a.k, a.v)):
        return False
    allowed: tuple[torch.dtype, ...] = (torch.float16, torch.float32)
    if device.capability[0] >= 8:
        allowed = (*allowed, torch.bfloat16)
    return (
        _nonempty(a)
        and _unit_last_stride(a, ignore_singleton=False)
        and _batch_and_heads(a, r, gqa=r.efficient_takes_gqa, same_kv_heads=True)
        and _same_dtype(a, allowed)
    )


# Torch numbers backends; making one from its number makes another object.
_BY_NUMBER: dict[int, SDPBackend] = {b.value: b for b in SDPBackend.__members__.values()}


def _order(r: Rules, device: StandinDevice) -> list[SDPBackend]:
    """The backends in the order in which they are tried.

    torch puts cuDNN first on its first choice in a process; a context that sets an order of its own wins.
    """
    order = [_BY_NUMBER[i] for i in torch._C._get_sdp_priority_order()]
    default = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if order[:3] != default or os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
        return order
    if device.capability[0] in (9, 10) and r.cudnn > 91500:
        return [SDPBackend.CUDNN_ATTENTION, *default]
    return order


def choose(a: Query, device: StandinDevice, r: Rules = RULES) -> SDPBackend:
    """The backend that CUDA would use. Raises RuntimeError if every backend that fits is disabled."""
    fits = {
        SDPBackend.CUDNN_ATTENTION: _cudnn,
        SDPBackend.FLASH_ATTENTION: _flash,
        SDPBackend.EFFICIENT_ATTENTION: _efficient,
    }
    for backend in _order(r, device):
        if backend is SDPBackend.MATH:
            if torch.backends.cuda.math_sdp_enabled():
                return backend
        elif backend in fits and fits[backend](a, r, device):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A boolean mask as one that is added; any other as it is."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    masked = aten.scalar_tensor.default(-math.inf, dtype=dtype, device=mask.device)
    return aten.where.ScalarSelf(mask, 0.0, masked)


def _additive_for_cudnn(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """As `_additive`, in cuDNN's way: with a finite number, and a zero on the CPU, where a scalar may stay."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    kept = aten.scalar_tensor.default(0.0, dtype=dtype)
    return aten.where.ScalarSelf(aten.logical_not.default(mask), -65504.0, kept)


def _padded(t: Tensor, multiple: int) -> Tensor:
    return aten.pad.default(t, [0, multiple - t.size(-1) % multiple])


def _aligned_mask(mask: Tensor, a: Query) -> Tensor:
    """The memory-efficient kernel reads a mask in rows that are multiples of 8 elements apart."""
    if any(s % 8 for s in mask.stride()[:-1]) or mask.stride(-1) != 1:
        mask = aten.slice.Tensor(_padded(mask, 8), -1, 0, mask.size(-1))
    return aten.expand.default(mask, [a.q.size(0), a.q.size(1), a.q.size(2), a.k.size(2)])


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`aten::scaled_dot_product_attention` for the pretended GPU."""
    if RULES.unbatched and query.dim() == key.dim() == value.dim() == 3:
        return _unbatched(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    a = Query(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    backend = choose(a, active_device())
    flags = {} if scale is None else {"scale": scale}
    if backend is SDPBackend.CUDNN_ATTENTION:
        mask = _additive_for_cudnn(attn_mask, query.dtype)
        out: Any = aten._scaled_dot_product_cudnn_attention.default(
            query, key, value, mask, a.needs_grad, dropout_p, is_causal, False, **flags
        )
        return out[0]
    mask = _additive(attn_mask, query.dtype)
    if backend is SDPBackend.FLASH_ATTENTION:
        width = query.size(-1)
        inputs = (query, key, value) if width % 8 == 0 else [_padded(t, 8) for t in (query, key, value)]
        out = aten._scaled_dot_product_flash_attention.default(
            *inputs, dropout_p, is_causal, False, scale=1.0 / math.sqrt(width) if scale is None else scale
        )
        first: Tensor = out[0]
        return first if first.size(-1) == width else aten.slice.Tensor(first, -1, 0, width)
    if backend is SDPBackend.EFFICIENT_ATTENTION:
        if mask is not None:
            mask = _aligned_mask(mask, a)
        out = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, mask, a.needs_grad, dropout_p, is_causal, **flags
        )
        return out[0]
    out = aten._scaled_dot_product_attention_math.default(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )
    return out[0]


def _unbatched(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    while mask is not None and mask.dim() < 4:
        mask = mask.unsqueeze(0)
    q, k, v = (t.unsqueeze(0) for t in (query, key, value))
    out = scaled_dot_product_attention(
        q, k, v, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out.squeeze(0)
