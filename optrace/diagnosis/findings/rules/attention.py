"""Attention written out as two products around a softmax."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optrace import units
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import OpFacts, OpNode, TensorMeta

_PRODUCTS = ("bmm", "baddbmm")
#: Calls between a product and the softmax, and between the softmax and the other product.
_BETWEEN = frozenset(
    {
        "mul",
        "div",
        "add",
        "sub",
        "where",
        "masked_fill",
        "_to_copy",
        "clone",
        "native_dropout",
        "maximum",
        "clamp",
        "tanh",
        "copy",
    }
)
_MOST_BETWEEN = 8


@dataclass(frozen=True, slots=True)
class _Attention:
    """The products and all calls between them. ``scores`` is the first product's result."""

    first: int
    last: int
    calls: tuple[int, ...]


@kind("written-out-attention", "attention written out instead of F.scaled_dot_product_attention")
def attention_written_out(scene: Scene) -> Iterator[Hit]:
    """Product, pointwise ops, softmax, product: scores of size length x length pass through HBM several times."""
    for softmax in scene.calls_of("_softmax"):
        if scene.graph.phase(softmax) == "backward":
            continue
        found = _around(scene, softmax)
        if found is None:
            continue
        scores = scene.node(found.first).outputs[0]
        moved = sum(scene.hbm_bytes[call] for call in found.calls)
        fused_us, launches = _fused(scene, found)
        last = found.last
        gone = {*found.calls, *scene.views_for(found.calls), *_relayout_after(scene, last)}
        yield Hit(
            (softmax, *found.calls),
            f"scores of shape {list(scores.shape)} are written and read by {len(found.calls)} calls, {units.moved(moved)} "
            "through HBM; the fused kernel keeps them on chip.",
            "use F.scaled_dot_product_attention(q, k, v, attn_mask=..., is_causal=...); mask and scale are its arguments.",
            {**scene.left_out(gone), last: scene.one_call(last, fused_us, launches, "attention")},
        )


def _around(scene: Scene, softmax: int) -> _Attention | None:
    """The products before and after, with nothing but pointwise ops between; None where there are none."""
    before: list[int] = []
    place = scene.source(softmax)
    while place >= 0 and scene.names[place] in _BETWEEN and len(before) < _MOST_BETWEEN:
        before.append(place)
        place = _widest_source(scene, place)
    if place < 0 or scene.names[place] not in _PRODUCTS or not _is_over_keys(scene, softmax, place):
        return None
    first = place
    after: list[int] = []
    place = softmax
    while len(after) < _MOST_BETWEEN:
        users = [user for user in scene.users[place] if scene.graph.phase(user) == scene.graph.phase(softmax)]
        product = next((user for user in users if _takes_probabilities(scene, user, softmax)), None)
        if product is not None:
            copies = _relayouts(scene, first, product)
            calls = sorted({first, *before, softmax, *after, product, *copies})
            return _Attention(first, product, tuple(calls))
        following = next((user for user in users if scene.names[user] in _BETWEEN), None)
        if following is None:
            return None
        after.append(following)
        place = following
    return None


def _is_over_keys(scene: Scene, softmax: int, product: int) -> bool:
    """The softmax runs along the product's last dimension, over all of its scores."""
    given, scores = scene.node(softmax).inputs[0], scene.node(product).outputs[0]
    dim = scene.node(softmax).arg("dim")
    last = isinstance(dim, int) and dim % len(given.shape) == len(given.shape) - 1
    return last and given.shape[-1] == scores.shape[-1] and given.numel == scores.numel


def _takes_probabilities(scene: Scene, call: int, softmax: int) -> bool:
    """A product of the softmax's result and values."""
    if scene.names[call] not in _PRODUCTS:
        return False
    left, given = scene.node(call).inputs[-2], scene.node(softmax).outputs[0]
    return left.shape[-1] == given.shape[-1] and left.numel == given.numel


def _widest_source(scene: Scene, call: int) -> int:
    """What made the call's largest operand: the scores, not the mask."""
    node = scene.node(call)
    if not node.inputs:
        return -1
    widest = max(range(len(node.inputs)), key=lambda place: (node.inputs[place].numel, -place))
    return scene.sources[call][widest]


def _relayouts(scene: Scene, first: int, product: int) -> list[int]:
    """Copies made only to hand an operand to one of the products."""
    found = []
    for call in (first, product):
        for source in scene.sources[call]:
            copied = source >= 0 and scene.names[source] == "clone" and scene.work(source).kind != "none"
            if copied and len(scene.users[source]) == 1:
                found.append(source)
    return found


def _relayout_after(scene: Scene, product: int) -> set[int]:
    """The copy that puts the heads' results beside each other: the fused op gives them so."""
    users = scene.users[product]
    if len(users) == 1 and scene.names[users[0]] == "clone" and scene.work(users[0]).kind == "transpose":
        return {users[0], *scene.views_for(users)}
    return set()


def _fused(scene: Scene, found: _Attention) -> tuple[float, int]:
    """Device time and launches of the fused op on the products' operands."""
    first, last = scene.node(found.first), scene.node(found.last)
    query, key = first.inputs[-2:]
    value = last.inputs[-1]
    batch, queries, dim = (1, *query.shape)[-3:]
    keys = key.shape[-1]
    node = _node(query, (1, batch, queries, dim), (1, batch, keys, dim), (1, batch, keys, value.shape[-1]))
    return scene.price(node)


def _node(
    like: TensorMeta,
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
) -> OpNode:
    """The fused call as torch would dispatch it."""
    halves = like.dtype in ("float16", "bfloat16")
    name = f"aten._scaled_dot_product_{'flash' if halves else 'efficient'}_attention.default"
    facts = OpFacts(name, arg_names=("query", "key", "value"))
    q, k, v = (_meta(like, shape, place) for place, shape in enumerate((query, key, value)))
    out = _meta(like, (*query[:-1], value[-1]), 3)
    return OpNode(
        id=-1,
        op=name,
        facts=facts,
        args=(q, k, v),
        kwargs={},
        out=out,
        inputs=(q, k, v),
        outputs=(out,),
        writes=(False, False, False),
        reads=(True, True, True),
    )


def _meta(like: TensorMeta, shape: tuple[int, ...], number: int) -> TensorMeta:
    stride = [1] * len(shape)
    for place in range(len(shape) - 2, -1, -1):
        stride[place] = stride[place + 1] * shape[place + 1]
    nbytes = stride[0] * shape[0] * like.itemsize
    return TensorMeta(shape, tuple(stride), like.dtype, like.device, -2 - number, nbytes, 0, -2 - number)
