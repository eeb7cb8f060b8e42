"""Schedules small enough to compute by hand."""

import pytest

from optrace.cost.host import HostTime
from optrace.timeline import Task, simulate


def task(host, device, launches=1, *, launch_us=1.0, stream=0, wait=False):
    return Task(HostTime(dispatch_us=host, launch_us=launches * launch_us), launches, device, stream, wait)


def adds_up(timeline):
    return sum(span.wall_us for span in timeline.spans) + timeline.host_tail_us == pytest.approx(
        timeline.wall_us
    )


def test_launch_bound_every_call_waits_for_the_host():
    # Issued at 5, 10, 15; each runs 2: idle 5, then 3, then 3.
    timeline = simulate([task(4, 2)] * 3)
    assert [(s.start_us, s.end_us, s.gap_us) for s in timeline.spans] == [(5, 7, 5), (10, 12, 3), (15, 17, 3)]
    assert (timeline.wall_us, timeline.issue_us, timeline.host_tail_us) == (17, 15, 0)
    assert timeline.b2b_us == 15
    assert adds_up(timeline)


def test_device_bound_only_the_first_call_waits():
    timeline = simulate([task(4, 20)] * 3)
    assert [(s.start_us, s.end_us, s.gap_us) for s in timeline.spans] == [
        (5, 25, 5),
        (25, 45, 0),
        (45, 65, 0),
    ]
    assert timeline.wall_us == 65
    assert timeline.b2b_us == 60
    assert adds_up(timeline)


def test_launches_of_one_call_are_issued_one_by_one():
    # Dispatch 2, then launches at 5 and 8; each half of 2 us: runs 5-6 and 8-9, idle 5 and 2.
    timeline = simulate([task(2, 2, 2, launch_us=3)])
    (span,) = timeline.spans
    assert (span.start_us, span.end_us, span.gap_us, span.busy_us) == (5, 9, 5 + 2, 2)


def test_a_call_without_launches_only_costs_the_host():
    timeline = simulate([task(4, 2), task(10, 0, 0)])
    assert (timeline.wall_us, timeline.host_tail_us) == (15, 15 - 7)
    assert adds_up(timeline)


def test_a_wait_is_charged_the_idle_time_it_makes():
    # Call 0 runs 5-25 and the host waits for it, then pays 3. Call 1 is issued at 25 + 3 + 5 = 33: idle 8.
    # Without the wait it would be issued at 10 and start at 25 with no idle time.
    timeline = simulate([task(4, 20, wait=True), task(4, 2)], sync_us=3)
    waiter, after = timeline.spans
    assert (after.start_us, after.gap_us) == (33, 0)
    assert (waiter.gap_us, waiter.wait_us) == (5, 8)
    assert timeline.wall_us == 35
    assert adds_up(timeline)
    # Back to back: each step issues at +5, ends its first call at +25, pays 3, and issues again.
    assert timeline.b2b_us == pytest.approx(33)


def test_two_streams_run_side_by_side():
    # Stream 0 runs 5-25; stream 1 runs 10-40: of its 30 us, 15 are covered by stream 0.
    timeline = simulate([task(4, 20), task(4, 30, stream=1)])
    first, second = timeline.spans
    assert (first.exposed_us, second.exposed_us, second.busy_us) == (20, 15, 30)
    assert (first.gap_us, second.gap_us) == (5, 0)
    assert timeline.wall_us == 40
    assert timeline.b2b_us == 30
    assert adds_up(timeline)


def test_a_full_queue_holds_the_host():
    # Two launches may be pending. Issued at 1 and 2; the third waits until the first ends at 11, is issued at 12.
    tasks = [task(0, 10)] * 4
    held = simulate(tasks, queue_depth=2)
    assert [s.host_end_us for s in held.spans] == [1, 2, 12, 22]
    assert held.wall_us == simulate(tasks).wall_us == 41


def test_nothing_takes_no_time():
    timeline = simulate([])
    assert (timeline.wall_us, timeline.b2b_us, len(timeline.spans)) == (0, 0, 0)


def test_the_final_synchronize_costs_something_beyond_the_waiting():
    """The host is done at 10 us, the device at 9, 14 or 20."""
    for device_us, wall_us in ((1, 15), (6, 19), (12, 25)):
        timeline = simulate([task(7, device_us)], tail_us=2, synchronize_us=5)
        assert (timeline.issue_us, timeline.wall_us) == (10, wall_us)
        assert timeline.host_tail_us == wall_us - (8 + device_us)
        assert timeline.b2b_us == max(10, device_us)
