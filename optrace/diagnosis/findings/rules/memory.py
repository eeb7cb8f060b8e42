"""What the peak of memory holds that nobody will read again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from optrace import units
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind

#: Part of the peak from which the tensors of a line are worth a word, and calls since its last use from which on a
#: tensor is kept and not just about to go.
_LEAST_SHARE = 0.05
_LEAST_CALLS = 12


@kind("kept-alive", "tensors kept alive that set the peak")
def kept_alive_at_the_peak(scene: Scene) -> Iterator[Hit]:
    """Tensors made in the run and allocated at its peak whose last use is past."""
    memory = scene.run.priced.memory
    peak_call = memory.peak_call
    if peak_call < 0:
        return
    graph = scene.graph
    made = {storage: call for storage in memory.placed.tolist() if (call := int(memory.born[storage])) >= 0}
    freed = {storage: call for call in range(peak_call) for storage in graph.freed_after(call)}
    last_use = dict(made)
    for call in range(len(scene)):
        for tensor in (*graph.operands(call), *graph.outputs(call)):
            last_use[graph.tensor_storage(tensor)] = call
    kept: dict[object, list[tuple[int, int]]] = defaultdict(list)
    for storage, call in made.items():
        if call >= peak_call or storage in freed or graph.storages[storage].kind:
            continue
        if peak_call - last_use[storage] >= _LEAST_CALLS:
            place = scene.place(call)
            kept[place.line or place.module].append((call, graph.storages[storage].nbytes))
    for here in kept.values():
        nbytes = sum(size for _, size in here)
        if nbytes < _LEAST_SHARE * memory.peak:
            continue
        for call in dict.fromkeys(call for call, _ in here):
            yield Hit(
                (call,),
                f"{units.allocated(nbytes)} made here are still allocated at the peak of memory and not used any more.",
                "drop the reference once it has been used (del, a narrower scope, .detach() of what is logged), or run "
                "inference under torch.no_grad(), which keeps nothing for a backward pass.",
            )
