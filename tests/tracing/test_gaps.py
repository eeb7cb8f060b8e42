"""The program's own Python between calls, timed in a run of its own."""

import time

import pytest
import torch

from optrace.graph import Frame, OpFacts, OpGraph, Source
from optrace.tracing import TraceError, open_session
from optrace.tracing.clock import reference_loop_us
from optrace.tracing.gaps import Gaps, keep_times


def test_the_time_before_each_call_and_after_the_last():
    x = torch.ones(4)

    def step():
        torch.relu(x)
        time.sleep(0.03)
        torch.sin(x)
        time.sleep(0.02)

    with open_session("cpu", device="cpu") as session:
        step()
        gaps = session.time_gaps(step)
    assert gaps.ops == ("aten.relu.default", "aten.sin.default")
    assert gaps.before_us[0] < 10_000 < 30_000 <= gaps.before_us[1]
    assert gaps.tail_us >= 20_000


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
    keep_times(graph, [Gaps(("aten.relu.default",) * 6, (9, 1, 4, 2, 6, 300), 7.0)], loop_us=1.5, scale=2.0)
    assert [graph.python_us(call) for call in range(6)] == [9 * 2, 2 * 2, 5 * 2, 2 * 2, 5 * 2, 2 * 2]
    assert (graph.info.tail_us, graph.info.python_loop_us) == (7.0 * 2, 1.5)


def test_a_run_of_other_calls_says_nothing():
    graph = graph_of(1, 2)
    keep_times(graph, [Gaps(("aten.relu.default", "aten.sin.default"), (1.0, 1.0), 0.0)], loop_us=1.0)
    assert graph.python_us(0) is None
    assert graph.info.tail_us is None
