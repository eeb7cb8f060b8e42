from __future__ import annotations

import time
from dataclasses import replace

import msgspec
import pytest
import torch

from optrace.cost.profiles import pricing
from optrace.diagnosis.findings import find
from optrace.diagnosis.findings.scene import Scene
from optrace.graph import Source
from optrace.rendering.findings import place
from optrace.report import report
from optrace.tracing import open_session
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


def test_python_around_a_call_that_is_left_out_stays() -> None:
    """Of what passes before a call, its own 2 us go with it."""
    with open_session("fake") as session:
        x = torch.ones(64, 64, dtype=torch.bfloat16, device="cuda")
        with session.recording():
            torch.relu(x)
            torch.relu(x.float())
    prices = pricing("h200", "xeon-vm")
    between = msgspec.structs.replace(prices.host.between, own_us=2.0)
    host = msgspec.structs.replace(prices.host, between=between)
    scene = Scene(report(session.graph, replace(prices, host=host)))
    gone = scene.gone(1)
    assert gone.host.total_us == pytest.approx(between.call_us - 2.0)
    assert (gone.launches, gone.device_us) == (0, 0.0)
    bare = msgspec.structs.replace(prices.host, between=None)
    assert Scene(report(session.graph, replace(prices, host=bare))).gone(1).host.total_us == 0.0


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
