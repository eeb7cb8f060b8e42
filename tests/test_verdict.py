from __future__ import annotations

from optrace.diagnosis import cures
from tests.rendering.by_hand import HandGraph


def test_a_cure_that_saves_nothing_is_not_recommended() -> None:
    # A replay costs 10 us and 1 us a launch; each call 11 us of host time and 2 us on the device.
    one, many = HandGraph(), HandGraph()
    one.chain(1, device_us=2.0)
    many.chain(100, device_us=2.0)
    few = one.report().verdict
    assert few.bottleneck == "launch"
    assert few.graph_us == 2 + 10 + 1
    assert few.wall_us == 11 + 2
    assert few.sentence.endswith("too few launches for a CUDA graph to pay, fusion would spare some")
    assert "a CUDA graph would help (~310 us instead of ~1.1 ms)" in many.report().verdict.sentence


def test_each_step_of_a_run_is_a_replay() -> None:
    """Three steps of two launches: 10 us a replay, 1 us a launch, beside 6 x 2 us on the device."""
    steps = HandGraph(steps=3)
    steps.chain(6, device_us=2.0)
    report = steps.report()
    assert report.verdict.graph_us == 6 * 2 + 3 * 10 + 6
    graph = cures(report.priced, report.timeline, report.verdict).cuda_graph
    assert (graph.host_us, graph.wall_us) == (3 * 10, 6 * 2 + 3 * 10 + 6)
