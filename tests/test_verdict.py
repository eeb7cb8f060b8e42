from __future__ import annotations

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
