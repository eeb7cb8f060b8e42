"""Modules in the wrong mode: training where nothing is trained, gradients that nobody applies."""

from __future__ import annotations

from collections.abc import Iterator

from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind

_DROPOUT = ("native_dropout", "_fused_dropout")
_BATCH_NORM = ("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")


@kind("training-mode", "dropout or batch norm in training mode at inference")
def training_mode_at_inference(scene: Scene) -> Iterator[Hit]:
    """Runs without a backward pass or an optimizer in which dropout drops and batch norm takes the batch's statistics."""
    if any(scene.graph.phase(call) in ("backward", "optimizer") for call in range(len(scene))):
        return
    for call in scene.calls_of(*_DROPOUT):
        node = scene.node(call)
        if node.arg("train") is not False and node.arg("p") != 0:
            yield Hit(
                (call,),
                "dropout drops in a run that trains nothing: it costs a pass and makes the results random.",
                "call model.eval(), or pass training=self.training to F.dropout.",
                scene.left_out((call,)),
            )
    for call in scene.calls_of(*_BATCH_NORM):
        node = scene.node(call)
        trains = node.arg("training", True)
        storage = scene.storage_of(call)
        standardizes_a_weight = storage >= 0 and scene.graph.storages[storage].kind == "parameter"
        if trains is False or standardizes_a_weight:
            continue
        nbytes = 2 * node.inputs[0].nbytes
        yield Hit(
            (call,),
            "batch norm takes its statistics from the batch in a run that trains nothing: two passes instead of one, and "
            "results that depend on the batch.",
            "call model.eval().",
            {
                **scene.left_out(_counts_batches(scene, call)),
                call: scene.retimed(call, scene.streaming_us(nbytes), 1),
            },
        )
    for call in range(len(scene)):
        if "_scaled_dot_product_" in scene.names[call] and scene.node(call).arg("dropout_p"):
            yield Hit(
                (call,),
                "attention drops probabilities in a run that trains nothing.",
                "call model.eval(), or pass dropout_p=0.0.",
            )


def _counts_batches(scene: Scene, norm: int) -> tuple[int, ...]:
    """The call before a batch norm that counts the batches it has seen."""
    graph, before = scene.graph, norm - 1
    if before < 0 or scene.names[before] != "add" or graph.module_of(before) != graph.module_of(norm):
        return ()
    storage = scene.storage_of(before)
    counts = storage >= 0 and graph.storages[storage].name.endswith("num_batches_tracked")
    return (before,) if counts else ()


@kind("frozen-gradient", "gradients that no optimizer step uses")
def gradients_of_frozen_parts(scene: Scene) -> Iterator[Hit]:
    """Launching calls of the backward pass whose results reach neither the optimizer nor anything else that runs."""
    phases = [scene.graph.phase(call) for call in range(len(scene))]
    last_backward = max((call for call, phase in enumerate(phases) if phase == "backward"), default=-1)
    if "optimizer" not in phases[last_backward + 1 :] or last_backward < 0:
        return
    needed = {call for call, phase in enumerate(phases) if phase != "backward"}
    waiting = sorted(needed)
    while waiting:
        for source in scene.sources[waiting.pop()]:
            if source >= 0 and source not in needed:
                needed.add(source)
                waiting.append(source)
    backward = [call for call, phase in enumerate(phases) if phase == "backward" and call not in needed]
    idle = [call for call in backward if scene.launches[call]]
    # Views that only hand operands to these calls, and those of what they give.
    views: dict[int, list[int]] = {call: [] for call in idle}
    for call in idle:
        views[call] += (view for view in scene.views_for([call]) if phases[view] == "backward")
    for view in backward:
        if scene.graph.is_view(view) and scene.source(view) in views:
            views[scene.source(view)].append(view)
    for call in idle:
        yield Hit(
            (call,),
            f"the backward pass runs {scene.names[call]} for gradients that no optimizer step uses.",
            "freeze what is not trained before the forward pass: requires_grad_(False) on its parameters, or torch.no_grad() "
            "around it.",
            scene.left_out((call, *views[call])),
        )
