"""Which timings count on a host whose speed changes."""

from optrace.measuring.steady import TOLERANCE, Timing, timed, undisturbed


def test_timings_at_the_best_speed_count():
    good, slow = Timing((5.0,), 1.0 + TOLERANCE / 2), Timing((9.0,), 2.0)
    assert undisturbed([slow, good, Timing((4.0,), 1.0)]) == [good, Timing((4.0,), 1.0)]


def test_where_none_was_at_the_best_speed_known_the_least_disturbed_third_counts():
    timings = [Timing((float(n),), 2.0 + n / 10) for n in range(6)]
    assert undisturbed(timings, 1.0) == timings[:2]


def test_a_timing_carries_the_speed_of_the_host():
    timing = timed(lambda: (3.0,))
    assert timing.us == (3.0,)
    assert timing.loop_us > 0
