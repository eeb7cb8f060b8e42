"""Predicted times beside measured ones: arithmetic on the page."""

from dataclasses import replace

import pytest

from optrace.cost.l2 import Traffic
from optrace.cost.profiles import pricing
from optrace.measuring.record import Launch, MeasuredRun
from optrace.measuring.times import (
    BoundTimes,
    OpTimes,
    _measured_bound,
    add_op_times,
    compare_bounds,
    off_by,
    replay_measured_kernels,
)
from optrace.report import report
from tests.cost.calls import Maker, T

BIG = T(2**26)  # 256 MiB of float32


def run_of(*kernel_us, issue_us=None):
    """An addition of 256 MiB a kernel time given."""
    maker = Maker()
    for _ in kernel_us:
        maker("aten.add.Tensor", BIG, BIG, out=T(2**26))
    return MeasuredRun(
        name="additions",
        graph=maker.graph,
        launches=tuple((Launch("kernel", "add", us),) for us in kernel_us),
        wall_us=1000.0,
        issue_us=issue_us,
        b2b_us=None,
        device_us=sum(kernel_us),
        memory_base=None,
        memory_peak=None,
        workspace_bytes=None,
        freed_known=True,
    )


@pytest.fixture
def prices():
    """A host that takes 10 us a call: 4 of Python, 4 of dispatch, 2 of launch."""
    chosen = pricing("h200", "default", dispatch_us=4.0, launch_us=2.0)
    return replace(chosen, host=chosen.host.__class__(**host_fields(chosen.host) | {"python_us": 4.0}))


def host_fields(host):
    return {name: getattr(host, name) for name in host.__struct_fields__}


def test_misses_add_up_by_size_whatever_their_sign(prices):
    run = run_of(100.0, 400.0)
    priced = report(run.graph, prices)
    us = priced.costs[0].device_us
    rows = {}
    add_op_times(run, priced, rows)
    row = rows["aten.add.Tensor"]
    assert (row.calls, row.measured_us) == (2, 500.0)
    assert row.off_us == pytest.approx(abs(us - 100) + abs(priced.costs[1].device_us - 400))
    assert off_by([row]) == pytest.approx(row.off_us / 500)
    assert off_by([OpTimes("a", 1, 5.0, 4.0, 1.0), OpTimes("b", 1, 1.0, 4.0, 3.0)]) == (1 + 3) / (4 + 4)


def test_measured_kernels_behind_the_predicted_host(prices):
    """Both calls are issued by 10 and 20 us; the kernels take 30 and 50: 10 + 30 + 50."""
    run = run_of(30.0, 50.0)
    assert replay_measured_kernels(run, report(run.graph, prices)).wall_us == pytest.approx(10 + 30 + 50)


def test_a_host_twice_as_slow(prices):
    run = run_of(5.0, 5.0)
    replayed = replay_measured_kernels(run, report(run.graph, prices), host_scale=2.0)
    assert replayed.wall_us == pytest.approx(20 + 20 + 5)


def test_bounds_agree_where_the_measured_kernels_keep_the_device_busy(prices):
    long = run_of(300.0, 300.0, issue_us=20.0)
    agreed = compare_bounds(long, report(long.graph, prices))
    assert agreed == BoundTimes(10 + 300 + 300, 10 + 300 + 300)
    # Kernels of 1 us would leave the device waiting for the host: predicted memory, measured launch.
    short = run_of(1.0, 1.0, issue_us=20.0)
    assert compare_bounds(short, report(short.graph, prices)).agreed_us == 0
    assert compare_bounds(run_of(1.0), report(run_of(1.0).graph, prices)) is None


def test_bytes_that_stay_in_the_l2_are_on_the_memory_side_of_a_measured_bound(prices):
    """A pointwise op whose operands never leave the L2 does not wait for arithmetic; a large product does."""
    maker = Maker()
    maker("aten.add.Tensor", T(2**16), T(2**16), out=T(2**16))
    maker("aten.mm.default", T(4096, 4096), T(4096, 4096), out=T(4096, 4096))
    costs = report(maker.graph, prices).costs
    in_l2 = [replace(cost, traffic=Traffic(0, 0)) for cost in costs]
    assert [_measured_bound(False, cost, prices.gpu, True) for cost in in_l2] == ["memory", "compute"]
