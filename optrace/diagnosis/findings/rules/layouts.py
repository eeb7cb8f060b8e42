"""The same elements in another order: copies back and forth, and what cuDNN relays before and after a convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optrace import units
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import OpNode, TensorMeta, Value
from optrace.timeline import Task

#: Calls that are looked back through for the copy that undoes another.
_LOOK_BACK = 6
#: Bytes that convolutions relay from which it is worth a word.
_LEAST_MOVED = 16 << 20


@kind("layout", "tensors laid out anew, and back")
def layouts_back_and_forth(scene: Scene) -> Iterator[Hit]:
    """Convolutions whose operands are relaid for them, and ``.contiguous()`` that undoes another."""
    yield from _relaid_convolutions(scene)
    yield from _copies_back(scene)


#: By the rank of an image, how torch names the layout in which its channels are last. Of one dimension it has none.
_CHANNELS_LAST = {4: "torch.channels_last", 5: "torch.channels_last_3d"}


def _relaid_convolutions(scene: Scene) -> Iterator[Hit]:
    """cuDNN's kernels for tensor cores want channels last: row-major tensors are transposed for each call. One finding a
    run and rank, since one change lifts all."""
    instead: dict[int, dict[int, Task | None]] = {rank: {} for rank in _CHANNELS_LAST}
    moved = dict.fromkeys(_CHANNELS_LAST, 0)
    for call in scene.calls_of("convolution", "_convolution", "cudnn_convolution", "convolution_backward"):
        work = scene.work(call)
        relaid = len(work.scratch)
        rank = len(scene.node(call).inputs[0].shape)
        if work.kind != "convolution" or not relaid or (work.kernels or 0) <= relaid:
            continue
        if rank in _CHANNELS_LAST:
            instead[rank][call] = scene.retimed(
                call, *scene.price(_channels_last(scene.node(call)), scene.crossing(call))
            )
            moved[rank] += 2 * sum(work.scratch)
    for rank, layout in _CHANNELS_LAST.items():
        if moved[rank] < _LEAST_MOVED:
            continue
        calls = sorted(instead[rank], key=lambda call: -scene.wall_us[call])
        yield Hit(
            tuple(calls),
            f"cuDNN lays tensors of {len(calls)} convolutions out anew ({units.moved(moved[rank])} moved): its kernels want "
            "channels last and the images are row-major.",
            f"keep model and images in channels last: .to(memory_format={layout}).",
            instead[rank],
        )


def _copies_back(scene: Scene) -> Iterator[Hit]:
    """A copy into another layout of what comes, element by element, from another such copy."""
    for call in range(len(scene)):
        if not _is_relayout(scene, call):
            continue
        earlier = _copy_before(scene, call)
        if earlier is None:
            continue
        yield Hit(
            (call, earlier),
            "a tensor that .contiguous() (or reshape) has laid out anew is laid out anew again, with nothing in between that "
            "needs it.",
            "keep one layout (channels last for images) and permute at the ends only.",
            scene.left_out((call, earlier)),
        )


def _is_relayout(scene: Scene, call: int) -> bool:
    if (
        scene.names[call] not in ("clone", "_to_copy", "copy", "contiguous")
        or scene.work(call).kind != "transpose"
    ):
        return False
    node = scene.node(call)
    given = node.inputs[-1 if scene.names[call] == "copy" else 0]
    made = node.inputs[0] if scene.names[call] == "copy" else node.outputs[0]
    return _order(given) != _order(made)


def _order(tensor: TensorMeta) -> tuple[int, ...]:
    """The dimensions that have a length, in order of their strides."""
    dims = [dim for dim, size in enumerate(tensor.shape) if size > 1]
    return tuple(sorted(dims, key=lambda dim: (-tensor.stride[dim], dim)))


def _copy_before(scene: Scene, call: int) -> int | None:
    """The copy that this one may undo, through ops that keep each element in its place."""
    numel = scene.node(call).inputs[-1 if scene.names[call] == "copy" else 0].numel
    place = scene.source(call, 1 if scene.names[call] == "copy" else 0)
    for _ in range(_LOOK_BACK):
        if place < 0 or scene.graph.phase(place) != scene.graph.phase(call):
            return None
        if _is_relayout(scene, place):
            return place
        node = scene.node(place)
        keeps = scene.is_pointwise(place) or "norm" in scene.names[place]
        if not keeps or not node.inputs or node.inputs[0].numel != numel:
            return None
        place = scene.source(place)
    return None


def _channels_last(node: OpNode) -> OpNode:
    """The convolution on images and weights in channels last."""
    tensors = {id(tensor): _relaid(tensor) for tensor in (*node.inputs, *node.outputs)}

    def relaid(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(relaid, value))
        return tensors[id(value)] if isinstance(value, TensorMeta) else value

    return replace(
        node,
        args=tuple(map(relaid, node.args)),
        kwargs={name: relaid(value) for name, value in node.kwargs.items()},
        out=relaid(node.out),
        inputs=tuple(tensors[id(tensor)] for tensor in node.inputs),
        outputs=tuple(tensors[id(tensor)] for tensor in node.outputs),
    )


def _relaid(tensor: TensorMeta) -> TensorMeta:
    """Channels fastest, then the other dimensions from the last; rows and vectors stay as they are."""
    if len(tensor.shape) < 4:
        return tensor
    stride = [0] * len(tensor.shape)
    step = 1
    for dim in (1, *range(len(tensor.shape) - 1, 1, -1), 0):
        stride[dim] = step
        step *= tensor.shape[dim]
    return replace(tensor, stride=tuple(stride))
