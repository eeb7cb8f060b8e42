"""Rates from timed launches: timings that the model makes of known rates give these rates back."""

import math

import msgspec
import pytest

from optrace.cost.device.kernel import Kernel, Product
from optrace.cost.device.rates import Rates
from optrace.cost.profiles import find_gpu
from optrace.measuring.calibration.fit import FEWEST, TimedLaunch, fit_rates

replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def gpu():
    return find_gpu("h200")


def of_kind(gpu, kind, rates):
    """``gpu`` with other rates of one kind."""
    if kind in gpu.kernels:
        return replace(gpu, kernels={**gpu.kernels, kind: rates})
    return replace(gpu, products={**gpu.products, kind: rates})


def timed(gpu, launches, *, crossing):
    model = Rates(gpu)
    return [
        TimedLaunch(launch, launch.nbytes * share, model.launch_us(launch, launch.nbytes * share)[0])
        for launch in launches
        for share in crossing
    ]


#: With few and with many elements a block: its cost is to be told from that of the bytes.
STREAMS = [
    Kernel("vectorized", 2.0 * (1 << power), (1 << power) / (2048 if power % 2 else 256), 1.0)
    for power in range(12, 29)
]


def truth(gpu):
    """Streams on a GPU whose kernels begin later and whose memory is slower than its datasheet says."""
    return of_kind(gpu, "vectorized", replace(gpu.kernels["vectorized"], floor_us=2.0, hbm=1.3, l2=1.1))


def test_known_rates_come_back(gpu):
    rows = timed(truth(gpu), STREAMS, crossing=(0.0, 1.0))
    fitted = fit_rates(gpu, rows)
    found = fitted.gpu.kernels["vectorized"]
    assert found.floor_us == pytest.approx(2.0, rel=0.03)
    assert found.hbm == pytest.approx(1.3, rel=0.03)
    assert found.l2 == pytest.approx(1.1, rel=0.05)
    assert fitted.kinds["vectorized"].launches == 17 * 2
    assert fitted.kinds["vectorized"].after < 0.01 < fitted.kinds["vectorized"].before


def test_outliers_do_not_carry_it_away(gpu):
    rows = timed(truth(gpu), STREAMS, crossing=(0.0, 1.0))
    # Three launches of 34 took five times as long: another process came in between.
    spoilt = [
        TimedLaunch(row.launch, row.hbm_bytes, row.us * (5 if place in (3, 14, 30) else 1))
        for place, row in enumerate(rows)
    ]
    found = fit_rates(gpu, spoilt).gpu.kernels["vectorized"]
    assert found.hbm == pytest.approx(1.3, rel=0.06)
    assert found.floor_us == pytest.approx(2.0, rel=0.06)


def test_products_come_back_as_times(gpu):
    """Their rates stand in for each other in places, so the times count: of other shapes than those fitted to."""
    truth = replace(gpu.products["simt_nn"], floor_us=3.5, math=0.7, fetch_ps=25.0)
    there = of_kind(gpu, "simt_nn", truth)
    sides = (
        (64, 64, 256),
        (512, 512, 64),
        (1024, 1024, 1024),
        (2048, 256, 2048),
        (128, 4096, 512),
        (4096, 4096, 128),
    )

    def launches(scale):
        return [
            Product("simt_nn", "float32", m * scale, n, k, 1, 4.0 * (m * scale * k + k * n + m * scale * n))
            for m, n, k in sides
        ]

    fitted = fit_rates(gpu, timed(there, launches(1), crossing=(0.0, 1.0)))
    model, elsewhere = Rates(fitted.gpu), timed(there, launches(3), crossing=(0.5,))
    for row in elsewhere:
        assert model.launch_us(row.launch, row.hbm_bytes)[0] == pytest.approx(row.us, rel=0.08)


def test_a_few_launches_scale_a_kind_as_a_whole(gpu):
    shipped = gpu.kernels["cat"]
    launches = [Kernel("cat", float(1 << power), (1 << power) / 4096, 2.0) for power in (16, 20, 24)]
    rows = timed(gpu, launches, crossing=(1.0,))
    fitted = fit_rates(gpu, [TimedLaunch(r.launch, r.hbm_bytes, r.us * 2) for r in rows])
    assert fitted.gpu.kernels["cat"].floor_us == pytest.approx(2 * shipped.floor_us, rel=0.1)
    assert fitted.gpu.kernels["cat"].hbm == pytest.approx(2 * shipped.hbm, rel=0.1)


def test_kinds_that_nothing_was_timed_of_keep_their_rates(gpu):
    rows = timed(gpu, STREAMS[: FEWEST - 1], crossing=(1.0,))
    fitted = fit_rates(gpu, [TimedLaunch(r.launch, r.hbm_bytes, r.us * 9) for r in rows])
    assert fitted.kinds == {}
    assert fitted.gpu == gpu


def test_no_time_left_changes_nothing(gpu):
    assert fit_rates(gpu, timed(gpu, STREAMS, crossing=(1.0,)), seconds=-math.inf).gpu == gpu
