from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest
import torch

from optrace.cost.profiles import pricing
from optrace.diagnosis.findings import KINDS, Finding, find
from optrace.diagnosis.findings.scene import Scene
from optrace.graph import OpGraph, Source
from optrace.rendering.findings import place
from optrace.report import report
from optrace.tracing import open_session
from tests.diagnosis.findings import programs
from tests.diagnosis.findings.programs import Make
from tests.rendering.by_hand import HandGraph


def test_occurrences_at_a_line_are_one_finding_and_the_claim_is_a_replay() -> None:
    """Each read waits for its copy and then 5 us; without the reads the host goes on issuing."""
    hand = HandGraph()
    x = hand.tensor((8, 8))
    for layer in range(3):
        where = {"module": f"Net.blocks.{layer}", "cls": "Block"}
        hand.call("aten.relu.default", [x], [hand.tensor((8, 8))], line=3, device_us=2.0, **where)
        hand.call("aten._local_scalar_dense.default", [x], [], line=4, kernels=0, memcpys=1, device_us=1.0, host_wait=True, **where)  # fmt: skip
    report = hand.report()
    (finding,) = find(report)
    assert (finding.kind, finding.count, finding.module) == ("sync", 3, "Net.blocks.*")
    assert str(finding.source) == "/home/me/toy.py:4"
    # What is left are three calls of 11 us on the host, the last of which runs 2 us on the device.
    assert finding.saves_us == pytest.approx(report.timeline.wall_us - (3 * 11 + 2))


def test_a_place_says_what_is_known() -> None:
    """A read at one line of two modules that share no name; one of which nothing is known but the call."""
    hand = HandGraph()
    x = hand.tensor((8, 8))
    read = {"kernels": 0, "memcpys": 1, "host_wait": True}
    for module in ("One", "Other"):
        hand.call("aten._local_scalar_dense.default", [x], [], line=4, module=module, cls=module, **read)
    nowhere = hand.call("aten._local_scalar_dense.default", [x], [], **read)
    hand.graph.set_origin(nowhere, source=hand.graph.sources.add(Source()), module=-1, phase="forward")
    places = {place(found): found.count for found in find(hand.report()) if found.kind == "sync"}
    assert places == {"/home/me/toy.py:4": 2, "call %2": 1}


def test_low_utilization_names_the_op_that_takes_most_in_all() -> None:
    """Twenty relus of 2 us behind 11 us of the host each, one wait of the GPU longer than any of theirs."""
    with open_session("fake", assume="zero") as session:
        x, w = (torch.empty(512, 512, device="cuda") for _ in range(2))
        with session.recording():
            y = x @ w
            for _ in range(20):
                y = y.relu()
    (finding,) = find(report(session.graph, pricing("h200")))
    assert finding.kind == "low-mfu"
    assert finding.why.endswith("most of it in relu.")
    assert session.graph.facts(finding.leads[0]).label == "relu"


def test_a_run_without_calls_has_no_findings() -> None:
    assert find(HandGraph().report()) == ()


def test_the_search_is_near_linear() -> None:
    def seconds(layers: int) -> float:
        hand = HandGraph()
        hand.chain(layers * 10)
        for _ in range(layers):
            hand.call(
                "aten._local_scalar_dense.default", [0], [], line=4, kernels=0, memcpys=1, host_wait=True
            )
        report = hand.report()
        best = float("inf")
        for _ in range(3):
            start = time.process_time()
            find(report)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(400) < 12 * seconds(100)


def timed_claims(make: Make, kind: str, python_us: Mapping[int, float]) -> float:
    """What the findings of ``kind`` claim for the first twin, with 3 us of Python before each call but these."""
    run = report(recorded(make, python_us), pricing("h200", "xeon-vm"))
    return sum(finding.saves_us or 0.0 for finding in find(run) if finding.kind == kind)


def recorded(make: Make, python_us: Mapping[int, float]) -> OpGraph:
    with open_session("fake", assume="zero") as session:
        step = make(True)
        with session.recording():
            step()
    for call in range(len(session.graph)):
        session.graph.set_python_us(call, python_us.get(call, 3.0))
    return session.graph


def test_the_python_before_a_call_goes_with_it_and_what_leads_there_stays() -> None:
    """A cast there and back, first in its step behind 80 us of Python; 4 us between them; a relu."""
    prices = pricing("h200", "xeon-vm")
    graph = recorded(programs.there_and_back, {0: 80.0, 1: 4.0})
    scene = Scene(report(graph, prices))
    assert prices.host.between is not None
    call_us = prices.host.between.call_us
    left = scene.left_out([0, 1])
    assert left[1] is None
    assert left[0] is not None
    assert left[0].host.total_us == pytest.approx(80.0 - call_us)
    assert (left[0].launches, left[0].device_us) == (0, 0.0)
    alone = scene.left_out([1])[1]
    assert alone is not None
    assert alone.host.total_us == 0.0
    each = [scene.costs.host[call] for call in (0, 1)]
    saved = call_us + 4.0 + sum(host.dispatch_us + host.launch_us for host in each)
    assert timed_claims(programs.there_and_back, "redundant-cast", {0: 80.0, 1: 4.0}) == pytest.approx(saved)


def test_what_a_first_call_pays_is_not_saved_where_another_then_pays_it() -> None:
    """A cast there and back, then a relu: without the first cast the pass still begins, and casts are cold once."""
    prices = pricing("h200", "xeon-vm")
    graph = recorded(programs.there_and_back, {})
    host = msgspec.structs.replace(prices.host, first_of_pass_us=30.0, first_of_op_us=10.0)
    scene = Scene(report(graph, replace(prices, host=host)))
    assert list(scene.costs.host.first_us) == [30.0, 0.0, 10.0]
    both, last = scene.left_out([0, 1]), scene.left_out([2])[2]
    assert both[0] is not None
    assert (both[0].host.dispatch_us, both[1]) == (30.0, None)
    assert last is not None
    assert last.host.dispatch_us == 0.0
    assert scene.one_call(2, 1.0).host.dispatch_us - scene.one_call(1, 1.0).host.dispatch_us == 10.0


def test_casts_of_the_backward_pass_go_with_those_of_the_forward_pass() -> None:
    def cast_in_training(cast: bool) -> tuple[float, list[Finding]]:
        with open_session("fake", assume="zero") as session:
            weight = torch.nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16, device="cuda"))
            with session.recording():
                y = weight * 2
                y = y.float().bfloat16() if cast else y
                y.sum().backward()
        run = report(session.graph, pricing("h200", "xeon-vm"))
        return run.timeline.wall_us, [row for row in find(run) if row.kind == "redundant-cast"]

    wall_us, (finding,) = cast_in_training(True)
    without_us, none = cast_in_training(False)
    assert none == []
    assert [finding.count, len(finding.calls)] == [1, 4]
    assert finding.saves_us == pytest.approx(wall_us - without_us, abs=1.0)


def test_without_times_a_call_takes_with_it_what_passes_between_calls_on_average() -> None:
    prices = pricing("h200")
    bare = msgspec.structs.replace(prices.host, between=None, python_us=6.0)
    graph = recorded(programs.there_and_back, {0: 80.0, 1: 4.0})
    left = Scene(report(graph, replace(prices, host=bare))).left_out([0])[0]
    assert left is not None
    assert left.host.total_us == pytest.approx(80.0 - 6.0)


@pytest.mark.parametrize(
    ("make", "kind"),
    [(programs.rotary_table, "rebuilt-constant"), (programs.attention, "written-out-attention")],
    ids=["table", "attention"],
)
def test_what_begins_a_step_is_not_saved_with_its_first_call(make: Make, kind: str) -> None:
    early, late = (timed_claims(make, kind, {0: us}) for us in (100.0, 900.0))
    assert 0 < early == pytest.approx(late)


def test_fused_attention_chooses_its_kernel_first() -> None:
    prices = pricing("h200", "xeon-vm")
    scene = Scene(report(recorded(programs.attention, {}), prices))
    between = prices.host.between
    assert between is not None
    (plain, fused) = (
        scene.one_call(3, 1.0, kind=kind).host.python_us for kind in ("elementwise", "attention")
    )
    assert fused - plain == pytest.approx(between.attention_us)


def test_a_convolution_of_fewer_kernels_takes_the_host_less() -> None:
    """Each kernel of a convolution is prepared like an op of its own."""
    prices = pricing("h200", "xeon-vm")
    scene = Scene(report(recorded(programs.row_major_convolutions, {}), prices))
    (call,) = scene.calls_of("convolution")
    task = scene.task(call)
    fewer = scene.retimed(call, 5.0, task.launches - 3)
    saved = task.host.total_us - fewer.host.total_us
    assert saved == pytest.approx(3 * prices.host.launch_us)


def test_batch_norm_that_learns_nothing_counts_no_batches() -> None:
    """The count of batches is a kernel of its own; what normalizes with the kept statistics is one launch as before."""
    run = report(recorded(programs.batch_norm_left_on, {0: 80.0}), pricing("h200", "xeon-vm"))
    assert [run.graph.facts(call).label for call in range(len(run.graph))] == ["add_", "cudnn_batch_norm"]
    (finding,) = (row for row in find(run) if row.kind == "training-mode")
    between, host = run.pricing.host.between, run.costs[0].host
    assert between is not None
    assert finding.saves_us == pytest.approx(between.call_us + host.dispatch_us + host.launch_us, abs=2.0)


def test_gradients_of_frozen_parts_take_their_views_with_them() -> None:
    """Of the backward pass of a frozen layer below a trained one nothing is left."""
    scene = Scene(report(recorded(programs.frozen_backbone, {}), pricing("h200", "xeon-vm")))
    gone = {call for hit in KINDS["frozen-gradient"].rule(scene) for call in hit.instead or {}}
    kept = [call for call in range(len(scene)) if scene.graph.phase(call) == "backward" and call not in gone]
    with open_session("fake", assume="zero") as session:
        step = programs.frozen_backbone(False)
        with session.recording():
            step()
    frozen = session.graph
    needed = [call for call in range(len(frozen)) if frozen.phase(call) == "backward"]
    names = (scene.names[call] for call in kept)
    assert sorted(names) == sorted(frozen.facts(call).label.rstrip("_") for call in needed)


def test_what_an_optimizer_does_before_it_begins_a_fused_one_does_too() -> None:
    """Python: 100 us before the first call, 3 us before each other; of 12 parameters' calls one is left."""
    with open_session("fake") as session:
        parameters = [torch.ones(64, device="cuda", requires_grad=True) for _ in range(12)]
        for parameter in parameters:
            parameter.grad = torch.ones(64, device="cuda")
        optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=False)
        with session.recording():
            optimizer.step()
    graph = session.graph
    for call in range(len(graph)):
        graph.set_python_us(call, 100.0 if call == 0 else 3.0)
    run = report(graph, pricing("h200", "xeon-vm"))
    (finding,) = (row for row in find(run) if row.kind == "loop-optimizer")
    assert finding.saves_us is not None
    assert finding.saves_us == pytest.approx(run.timeline.wall_us - 100.0, abs=30.0)
    assert finding.saves_us < run.timeline.wall_us - 100.0


@pytest.mark.parametrize(
    ("optimizer", "options", "other_way"),
    [
        (torch.optim.AdamW, {}, "fused"),
        (torch.optim.SGD, {"momentum": 0.9}, "fused"),
        (torch.optim.Adagrad, {}, "fused"),
        (torch.optim.RMSprop, {}, "foreach"),
        (torch.optim.Adadelta, {}, "foreach"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_optimizer_saves_what_its_quicker_step_takes_less(
    optimizer: type[torch.optim.Optimizer], options: dict[str, float], other_way: str
) -> None:
    """The step that is claimed beside the one that torch makes, both priced."""
    loop, (finding,) = optimizer_step(optimizer, {**options, "foreach": False})
    quicker, none = optimizer_step(optimizer, {**options, other_way: True})
    assert none == []
    assert f"pass {other_way}=True" in finding.change
    assert finding.saves_us == pytest.approx(loop - quicker, rel=0.03)


def test_an_optimizer_that_has_no_other_way_is_not_told_of_one() -> None:
    _, found = optimizer_step(torch.optim.Muon, {}, shape=(32, 32))
    assert found == []


def optimizer_step(
    optimizer: type[torch.optim.Optimizer], options: Mapping[str, object], shape: tuple[int, ...] = (64,)
) -> tuple[float, list[Finding]]:
    """The wall clock of a step over twelve parameters, and what is said of its loop."""
    with open_session("fake", assume="zero") as session:
        parameters = [torch.nn.Parameter(torch.ones(shape, device="cuda")) for _ in range(12)]
        for parameter in parameters:
            parameter.grad = torch.ones(shape, device="cuda")
        steps = optimizer(parameters, **options)  # type: ignore[arg-type,call-arg]  # each has its own
        steps.step()  # makes its state
        with session.recording():
            steps.step()
    run = report(session.graph, pricing("h200", "xeon-vm"))
    return run.timeline.wall_us, [row for row in find(run) if row.kind == "loop-optimizer"]


def test_each_step_of_an_optimizer_is_an_occurrence_with_a_fused_step_of_its_own() -> None:
    """SGD with momentum over 5 parameters. Three steps in a row, the last after a forward pass."""
    with open_session("fake") as session:
        parameters = [torch.nn.Parameter(torch.ones(64, device="cuda")) for _ in range(5)]
        for parameter in parameters:
            parameter.grad = torch.ones(64, device="cuda")
        optimizer = torch.optim.SGD(parameters, momentum=0.9, foreach=False)
        optimizer.step()  # makes its state
        with session.recording():
            for turn in range(3):
                if turn == 2:
                    parameters[0].sum()
                optimizer.step()
    (finding,) = [f for f in find(report(session.graph, pricing("h200"))) if f.kind == "loop-optimizer"]
    assert finding.count == 3
    each = 5 * (1 + 1 + 1)  # momentum scaled, gradient added, parameter moved
    assert finding.why == (
        f"sgd loops over its parameters in Python: {each} launches, where a fused step takes 1."
    )
