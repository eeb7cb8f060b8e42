from __future__ import annotations

import time

import pytest
import torch

from optrace.cost.profiles import pricing
from optrace.diagnosis.findings import find
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
