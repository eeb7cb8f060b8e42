"""What torch's own flop counter says of a recorded call, where it is right."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from optrace.graph import OpNode, TensorMeta, Value

#: Where torch's formula is wrong (as of 2.13), with what it does.
WRONG = {
    "aten.convolution_backward": "counts a grouped convolution's gradients as if it had one group",
    "aten._flash_attention_forward": "takes [batch, length, heads, dim] for [batch, heads, length, dim]",
    "aten._flash_attention_backward": "as its forward",
    "aten._efficient_attention_forward": "as _flash_attention_forward",
    "aten._efficient_attention_backward": "as its forward",
    "aten._cudnn_rnn": "has no formula",
}


@cache
def _packet(name: str) -> Any:
    namespace, _, rest = name.partition(".")
    return getattr(getattr(torch.ops, namespace), rest)


def torch_flops(node: OpNode) -> int | None:
    """torch's count for a call; None where it has no formula or is known to be wrong."""
    packet = node.facts.packet
    if packet in WRONG or not packet.startswith("aten."):
        return None
    if "scaled_dot_product" in packet and _is_causal(node):
        return None  # torch counts both triangles of a causal mask
    formula = flop_registry.get(_packet(packet))
    if formula is None:
        return None
    args = [_shaped(value) for value in node.args]
    kwargs = {name: _shaped(value) for name, value in node.kwargs.items()}
    try:
        return int(formula(*args, **kwargs, out_val=_shaped(node.out)))
    except AssertionError:
        return None  # shapes that the formula does not know, as grouped queries before torch 2.13


def _is_causal(node: OpNode) -> bool:
    return bool(node.arg("is_causal", False))


def _shaped(value: Value) -> Any:
    if isinstance(value, TensorMeta):
        return torch.empty(value.shape, device="meta")
    if isinstance(value, tuple):
        return [_shaped(item) for item in value]
    return value
