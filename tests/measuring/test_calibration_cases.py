"""The table of single ops, run with a stand-in GPU: what it covers, and how its launches meet those measured."""

from contextlib import contextmanager, nullcontext

import pytest

from optrace.cost.device import DeviceModel, launches_of
from optrace.cost.device.kernel import MEMSET, Product
from optrace.cost.pricing import price
from optrace.cost.profiles import pricing
from optrace.measuring.calibration import device_launches
from optrace.measuring.calibration.device_cases import DeviceCase, device_cases
from optrace.measuring.calibration.device_launches import sweep, timed_launches
from optrace.measuring.calibration.fit import fit_rates
from optrace.measuring.record import Launch
from optrace.tracing import open_session

#: Cases that are run here: every so many.
EVERY = 40


@pytest.fixture(scope="module")
def recorded():
    """A few dozen of the cases, cold and warm as the sweep runs them."""
    with open_session("fake", gpu="h200") as session:
        calls = [case.build() for case in device_cases()[::EVERY]]
        with session.recording():
            for call in calls:
                call()
                call()
    return session.graph


def test_each_case_has_its_own_name():
    names = [case.name for case in device_cases()]
    assert len(names) == len(set(names)) > 1000


def test_the_order_mixes_the_kinds():
    first = [case.name.partition("_")[0] for case in device_cases()[:100]]
    assert len(set(first)) > 25


def made_up(graph, prices, target):
    """Launches with the model's own times, as a profiler would tell them."""
    model = DeviceModel(prices.gpu, target)
    rows = []
    for node, cost in zip(graph, price(graph, prices).costs, strict=True):
        launched = launches_of(node, cost.work, target)
        touched = sum(launch.nbytes for launch in launched) or 1
        crossing = min(1.5, (cost.traffic.read + cost.traffic.written) / touched)
        rows.append(
            [
                Launch(
                    "memset" if launch is MEMSET else "kernel",
                    "nchwToNhwc"
                    if launch.kind.startswith("layout")
                    else f"gemm of {launch.kind}"
                    if isinstance(launch, Product)
                    else launch.kind,
                    model._rates.launch_us(launch, launch.nbytes * crossing)[0],
                )
                for launch in launched
            ]
        )
    return rows


def test_launches_meet_their_times_and_the_fit_agrees(recorded):
    prices = pricing("h200")
    target = prices.target(recorded.info)
    timed = list(timed_launches(recorded, prices, made_up(recorded, prices, target)))
    assert len({row.launch.kind for row in timed}) > 20
    fitted = fit_rates(prices.gpu, timed)
    # The rates that made the times are the profile's: there is nothing to mend.
    assert max(fit.before for fit in fitted.kinds.values()) < 0.02
    assert max(fit.after for fit in fitted.kinds.values()) < 0.02


def test_calls_that_launched_something_else_are_left_out(recorded):
    prices = pricing("h200")
    nothing = [[Launch("kernel", "unheard of", 1.0)] * 9 for _ in range(len(recorded))]
    assert list(timed_launches(recorded, prices, nothing)) == []


def test_the_sweep_runs_batch_by_batch_and_keeps_its_time(monkeypatch):
    """With a stand-in as the GPU and the model's own times as the profiler's."""
    prices = pricing("h200")
    monkeypatch.setattr(device_launches.torch.cuda, "mem_get_info", lambda: (1 << 37, 1 << 37))
    monkeypatch.setattr(device_launches.torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(device_launches.torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(device_launches, "_BATCH", 4)

    @contextmanager
    def profiled(session, calls, found):
        with session.counting(lambda _number: nullcontext()):
            yield
        graph = session.graph
        assert len(graph) == calls
        found.calls = made_up(graph, prices, prices.target(graph.info))

    def broken():
        raise RuntimeError("not on this GPU\nmore of it")

    cases = [*device_cases()[::150], DeviceCase("odd", broken)]
    monkeypatch.setattr(device_launches, "profiled", profiled)
    seen = []
    with open_session("fake", gpu="h200") as session:
        whole = sweep(session, prices, cases, seconds=600.0, progress=seen.append)
        cut = sweep(session, prices, cases, seconds=0.0, progress=seen.append)
    assert whole.failed == (("odd", "not on this GPU"),)
    assert (whole.cases, whole.left_out) == (len(cases) - 1, 0)
    assert seen == [4, 8, len(cases), 4]
    assert cut.left_out == len(cases) - 4
    assert len(whole.timed) > len(cut.timed) > 8
