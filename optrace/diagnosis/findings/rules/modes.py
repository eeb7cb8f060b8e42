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
                {call: scene.gone(call)},
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
            {call: scene.retimed(call, scene.streaming_us(nbytes), 1)},
        )
    for call in range(len(scene)):
        if "_scaled_dot_product_" in scene.names[call] and scene.node(call).arg("dropout_p"):
            yield Hit(
                (call,),
                "attention drops probabilities in a run that trains nothing.",
                "call model.eval(), or pass dropout_p=0.0.",
            )


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
    idle = [
        call
        for call, phase in enumerate(phases)
        if phase == "backward" and call not in needed and scene.launches[call]
    ]
    for call in idle:
        yield Hit(
            (call,),
            f"the backward pass runs {scene.names[call]} for gradients that no optimizer step uses.",
            "freeze what is not trained before the forward pass: requires_grad_(False) on its parameters, or torch.no_grad() "
            "around it.",
            {call: scene.gone(call)},
        )
