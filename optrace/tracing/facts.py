"""What a graph keeps of an overload, read from the dispatcher's schema."""

from __future__ import annotations

from functools import cache

import torch

from optrace.graph import OpFacts

#: Tags that every op has and that say nothing about its cost.
_DULL_TAGS = frozenset({"core", "pt2_compliant_tag", "generated", "needs_exact_strides", "flexible_layout"})


@cache
def packet_named(name: str) -> torch._ops.OpOverloadPacket | None:
    """The op that ``aten.add`` names; None where this torch has none of that name."""
    namespace, _, op = name.partition(".")
    try:
        found = getattr(getattr(torch.ops, namespace), op)
    except (AttributeError, RuntimeError):
        return None
    return found if isinstance(found, torch._ops.OpOverloadPacket) else None


@cache
def overload_named(name: str) -> torch._ops.OpOverload | None:
    """The overload that ``aten.add.Tensor`` names; None where this torch has none of that name."""
    packet, _, overload = name.rpartition(".")
    found = getattr(packet_named(packet), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


@cache
def facts_of(op: torch._ops.OpOverload) -> OpFacts:
    """Views, written arguments and tags of an overload, from its schema alone."""
    schema = op._schema
    written = [arg for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write]
    return OpFacts(
        name=str(op),
        is_view=any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        mutates=tuple(arg.name for arg in written),
        out_args=tuple(arg.name for arg in written if arg.kwarg_only),
        tags=tuple(sorted(tag.name for tag in _tags(op) if tag.name not in _DULL_TAGS)),
        arg_names=tuple(arg.name for arg in schema.arguments),
        composite=is_composite(op),
    )


def _tags(op: torch._ops.OpOverload) -> set[torch.Tag]:
    """An op's tags. Some in-place ops (``abs_``) are not said to be pointwise where the others of their name are."""
    tags = set(op.tags)
    name, _, overload = str(op).rpartition(".")
    if name.endswith("_"):
        other = overload_named(f"{name[:-1]}.{overload}")
        if other is not None and torch.Tag.pointwise in other.tags:
            tags.add(torch.Tag.pointwise)
    return tags


@cache
def is_composite(op: torch._ops.OpOverload) -> bool:
    """Whether the op is made of others in every backend. A dispatch mode meets such an op whole only under
    ``inference_mode``; elsewhere autograd has taken it apart before."""
    name: str = op.name()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
