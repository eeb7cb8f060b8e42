"""The host waiting for the device: values read in the step, sizes that depend on data, copies over the bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import TensorMeta
from optrace.timeline import Task

#: Op: what in a program makes it, and what to write instead.
_WAITS: Mapping[str, tuple[str, str]] = {
    "_local_scalar_dense": (
        "a value is read on the host (.item(), if tensor, int(tensor), printing it)",
        "keep the value on the GPU (torch.where, tensor arithmetic), or read it after the step, every N steps",
    ),
    "nonzero": (
        "how many elements are nonzero is asked (nonzero, boolean indexing)",
        "use torch.where or multiply by the mask; torch.nonzero_static where the size is known",
    ),
    "index": (
        "a boolean index needs the number of its true elements",
        "use torch.where or multiply by the mask; torch.nonzero_static where the size is known",
    ),
    "index_put": (
        "a boolean index needs the number of its true elements",
        "use torch.where or masked_fill",
    ),
    "masked_select": (
        "the size of the result is the number of true elements",
        "use torch.where or multiply by the mask",
    ),
    "repeat_interleave": (
        "the size of the result is the sum of the repeats",
        "pass output_size=",
    ),
    "_unique2": ("the size of the result is the number of distinct values", "move it out of the step"),
    "bincount": (
        "the size of the result is the largest value",
        "use scatter_add into a tensor of known size",
    ),
}
#: Of these those that only bring values to the host.
_READS = ("_local_scalar_dense", "_to_copy", "copy")
_OTHER_WAIT = ("the host waits for its result", "move it out of the step")


@kind("sync", "the host waits for the GPU inside the step")
def waits_for_the_device(scene: Scene) -> Iterator[Hit]:
    """Calls whose result the host needs; copies from the host are ``blocking-copy``."""
    for call in scene.waits:
        if _crosses_to_device(scene, call):
            continue
        name = scene.names[call]
        if name in ("_to_copy", "copy"):
            reason, change = (
                "a tensor is copied to the host (.cpu(), .tolist(), .numpy())",
                "keep it on the GPU, copy it with non_blocking=True into pinned memory, or do so after the step",
            )
        else:
            reason, change = _WAITS.get(name, _OTHER_WAIT)
        yield Hit(
            (call,),
            f"{reason}; the host stops issuing work until the GPU has caught up, and the GPU then idles.",
            f"{change}.",
            # What is read is not read any more; an op whose size depends on data is still done.
            scene.left_out((call, *scene.views_for([call])))
            if name in _READS
            else {call: _without_wait(scene, call)},
        )


@kind("blocking-copy", "a copy from the host that is not pinned or not asynchronous")
def copies_that_block(scene: Scene) -> Iterator[Hit]:
    """Copies from host to device without ``non_blocking``, or from memory that is not pinned."""
    for call in scene.calls_of("_to_copy", "copy"):
        if not _crosses_to_device(scene, call):
            continue
        if _fills_the_model(scene, call):
            continue
        source = _source(scene, call)
        waits = scene.work(call).host_wait
        pinned = source is not None and source.storage >= 0 and _is_pinned(scene, source)
        if pinned and not waits:
            continue
        missing = " and ".join(
            text
            for text, bad in (("its memory is not pinned", not pinned), ("it is not non_blocking", waits))
            if bad
        )
        yield Hit(
            (call,),
            f"{missing}, so the host waits for the copy and for all work before it.",
            "use pin_memory=True (in the DataLoader) and .to(device, non_blocking=True), a batch ahead.",
            # How fast memory that is not pinned is copied is not known, and that is most of what it costs.
            {call: _without_wait(scene, call)} if waits and pinned else None,
        )


def _source(scene: Scene, call: int) -> TensorMeta | None:
    node = scene.node(call)
    tensor = node.arg("src") if scene.names[call] == "copy" else node.arg("self")
    return tensor if isinstance(tensor, TensorMeta) else None


def _crosses_to_device(scene: Scene, call: int) -> bool:
    """A copy from the host's memory to the device's."""
    if scene.names[call] not in ("_to_copy", "copy"):
        return False
    node, source = scene.node(call), _source(scene, call)
    target = node.tensor("self") if scene.names[call] == "copy" else node.outputs[0]
    return source is not None and source.device == "cpu" and target.device not in ("cpu", "meta")


def _fills_the_model(scene: Scene, call: int) -> bool:
    """Parameters and buffers are brought to the device once."""
    graph = scene.graph
    written = graph.outputs(call) or graph.operands(call)[:1]
    storages = [graph.tensor_storage(tensor) for tensor in written]
    return any(graph.storages[s].kind in ("parameter", "buffer") for s in storages if s >= 0)


def _is_pinned(scene: Scene, tensor: TensorMeta) -> bool:
    return scene.graph.storages[tensor.storage].kind == "pinned"


def _without_wait(scene: Scene, call: int) -> Task:
    return replace(scene.task(call), host_wait=False)
