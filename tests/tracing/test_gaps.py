"""The program's own Python between calls, timed in a run of its own."""

import time
from dataclasses import replace

import pytest
import torch

from optrace.graph import Frame, OpFacts, OpGraph, Source
from optrace.tracing import TraceError, gaps, open_session
from optrace.tracing.clock import reference_loop_us
from optrace.tracing.gaps import Gaps, keep_times, typical


def test_the_time_before_each_call_and_after_the_last():
    x = torch.ones(4)

    def step():
        torch.relu(x)
        time.sleep(0.03)
        torch.sin(x)
        time.sleep(0.02)

    with open_session("cpu", device="cpu") as session:
        step()
        found = session.time_gaps(step)
    assert found.ops == ("aten.relu.default", "aten.sin.default")
    assert found.before_us[0] < 10_000 < 30_000 <= found.before_us[1]
    assert found.tail_us >= 20_000


def test_a_stand_in_is_no_place_to_time_python():
    with open_session("fake") as session, pytest.raises(TraceError, match="stand-in"):
        session.time_gaps(lambda: None)


def test_the_reference_loop_takes_microseconds():
    assert 0.05 < reference_loop_us(rounds=3) < 50


def graph_of(*lines):
    graph = OpGraph()
    op = graph.add_op_facts(OpFacts("aten.relu.default"))
    for line in lines:
        source = graph.sources.add(Source((Frame("model.py", line, "f", True),)))
        graph.add_call(op, graph.add_template((), (), None), [], [], [], source=source)
    return graph


def test_a_stretch_takes_the_median_of_its_passes():
    """Lines 1 2 1 2 1 2: the stretch from 1 to 2 is passed three times, that from 2 to 1 twice."""
    graph = graph_of(1, 2, 1, 2, 1, 2)
    run = Gaps(("aten.relu.default",) * 6, (9, 1, 4, 2, 6, 300), 7.0, (11.0,) * 6)
    parts_us = 9 + 2 + 5 + 2 + 5 + 2 + 7 + 6 * 11
    keep_times(graph, typical(graph, [run], parts_us), loop_us=1.5)
    assert [graph.python_us(call) for call in range(6)] == [9, 2, 5, 2, 5, 2]
    assert (graph.info.tail_us, graph.info.python_loop_us) == (7.0, 1.5)


def test_of_a_step_that_nobody_watches_as_much_passes_between_calls():
    """Watched a step takes 10 + 6 + 4 us between calls and 30 + 50 inside; unwatched half of that."""
    graph = graph_of(1, 2)
    run = Gaps(("aten.relu.default",) * 2, (10.0, 6.0), 4.0, (30.0, 50.0))
    assert (run.passed_us, run.took_us) == (20.0, 100.0)
    keep_times(graph, typical(graph, [run], 50.0), loop_us=1.0)
    assert [graph.python_us(call) for call in range(2)] == [5.0, 3.0]
    assert graph.info.tail_us == 2.0
    other = Gaps(("aten.relu.default",) * 2, (10.0, 6.0), 4.0, (20.0, 60.0))
    assert typical(graph, [run, other], 50.0).inside_us == (12.5, 27.5)


def test_medians_of_parts_make_up_the_whole():
    """Each run is held up in another call: 10 us in each part of most, where a step takes 48."""
    graph = graph_of(1, 2)
    runs = [
        Gaps(("aten.relu.default",) * 2, (10.0 + late[0], 10.0 + late[1]), 0.0, (10.0, 10.0 + late[2]))
        for late in ((8, 0, 0), (0, 8, 0), (0, 0, 8))
    ]
    assert {run.took_us for run in runs} == {48.0}
    step = typical(graph, runs, 48.0)
    assert step == Gaps(runs[0].ops, (12.0, 12.0), 0.0, (12.0, 12.0))


def test_a_run_on_a_quicker_host():
    run = Gaps(("aten.relu.default",), (10.0,), 4.0, (30.0,))
    assert run.quicker(2.0) == Gaps(("aten.relu.default",), (5.0,), 2.0, (15.0,))


def test_what_watching_adds_is_left_out(monkeypatch):
    """Between two calls 3 us and inside of one 2; a call of less than what is added took nothing."""
    clock = iter([0, 5_000, 9_000, 20_000, 21_000, 30_000])
    monkeypatch.setattr(gaps, "perf_counter_ns", lambda: next(clock))
    x = torch.ones(4)
    found = []
    with (
        open_session("cpu", device="cpu") as session,
        gaps.timed_gaps(session._watching, found.append, gaps.Watch(3.0, 2.0)),
    ):
        torch.relu(x)
        torch.relu(x)
    assert found == [Gaps(("aten.relu.default",) * 2, (2.0, 8.0), 6.0, (2.0, 0.0))]


def test_a_run_of_other_calls_says_nothing():
    graph = graph_of(1, 2)
    other = Gaps(("aten.relu.default", "aten.sin.default"), (1.0, 1.0), 0.0)
    assert typical(graph, [other], 2.0) is None
    nothing = Gaps(("aten.relu.default",) * 2, (0.0, 0.0), 0.0, (0.0, 0.0))
    assert typical(graph, [nothing], 2.0) is None
    assert typical(graph, [replace(nothing, tail_us=1.0)], 0.0) is None
