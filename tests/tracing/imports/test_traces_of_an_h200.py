"""Traces made on an H200 (torch 2.11): a bf16 attention block, a training step with clipping and fused-list AdamW, and
a convolution block in channels-last half precision with SGD. Figures of the device are the profiler's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from optrace.cost.profiles import pricing
from optrace.report import report
from optrace.tracing.imports import Imported, read_trace

FOLDER = Path(__file__).parent / "h200"


def read(name: str) -> Imported:
    return read_trace((FOLDER / f"{name}.json.gz").read_bytes(), name)


def ops(imported: Imported) -> list[str]:
    return [node.op for node in imported.graph]


@pytest.mark.parametrize(
    ("name", "launches", "device_us"),
    [("attention_block", 22, 126), ("mlp_train", 43, 302), ("conv_net", 68, 510)],
)
def test_every_launch_finds_its_call(name: str, launches: int, device_us: float) -> None:
    found = read(f"{name}.kineto")
    assert found.gpu == "NVIDIA H200"
    assert found.measured is not None
    assert len(found.measured.launches) == sum(found.measured.call_launches) == launches
    assert found.measured.unplaced_us == 0
    assert sum(found.measured.call_us) == pytest.approx(device_us, rel=0.01)
    first = found.measured.launches[0]
    assert first.issued_us is not None
    assert 0 < first.issued_us < first.start_us < first.end_us < found.measured.wall_us


@pytest.mark.parametrize("name", ["attention_block", "mlp_train", "conv_net"])
def test_both_observers_saw_the_same_calls(name: str) -> None:
    """Two runs of one program: which calls there are does not depend on who looks."""
    profiled, observed = read(f"{name}.kineto"), read(f"{name}.et")
    assert ops(profiled) == ops(observed)
    assert observed.measured is None
    assert observed.graph.info.incomplete == ()
    assert [node.phase for node in profiled.graph] == [node.phase for node in observed.graph]
    for ours, seen in zip(profiled.graph, observed.graph, strict=True):
        # what only a backward pass needs is not made without one, and cannot be told from the arguments
        assert [t.shape for t in ours.outputs[:1]] == [t.shape for t in seen.outputs[:1]]


@pytest.mark.parametrize(
    "name", ["attention_block.kineto", "attention_block.et", "mlp_train.kineto", "mlp_train.et"]
)
def test_launches_are_priced_call_by_call_as_they_were_measured(name: str) -> None:
    measured = read(f"{name.partition('.')[0]}.kineto").measured
    priced = report(read(name).graph, pricing("h200"))
    assert measured is not None
    assert [cost.launches for cost in priced.costs] == list(measured.call_launches)
    assert priced.totals["device_us"].value == pytest.approx(sum(measured.call_us), rel=0.25)


def test_stacks_say_where_a_call_came_from() -> None:
    graph = read("mlp_train.stacks").graph
    norm = next(node for node in graph if node.op == "aten.native_layer_norm.default")
    assert norm.module is not None
    assert norm.module.path == "Sequential_0.LayerNorm_0"
    assert norm.source.line is not None
    assert norm.source.line.function == "step"
    clipping = next(node for node in graph if node.op == "aten._foreach_norm.Scalar")
    assert clipping.phase == "optimizer"
