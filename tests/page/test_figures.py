"""The page computes what Python computes: every knob against pricing with a changed profile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from optrace.cost.host_profile import ONE_FOR_ALL
from optrace.cost.profiles import Pricing, gpu_profiles
from optrace.rendering import render
from optrace.report import Report
from optrace.report import report as price

#: Of a figure that both compute.
CLOSE = 1e-3

FIGURES: Mapping[str, Callable[[Report], float]] = {
    "out-wall": lambda report: report.timeline.wall_us,
    "out-launch": lambda report: report.verdict.launch_us,
    "out-memory": lambda report: report.verdict.memory_us,
    "out-compute": lambda report: report.verdict.compute_us,
    "out-sync": lambda report: report.verdict.sync_us,
    "out-tail": lambda report: report.verdict.host_tail_us,
    "out-graph": lambda report: report.verdict.graph_us,
    "out-plain-tax": lambda report: report.lesson.tax_us,
    "out-plain-traffic": lambda report: report.lesson.traffic_us,
    "out-plain-bytes": lambda report: report.lesson.bytes,
    "out-plain-kernels": lambda report: report.lesson.kernels,
    "tile-b2b": lambda report: report.timeline.b2b_us,
    "tile-launches": lambda report: report.totals["launches"].value,
    "tile-hbm": lambda report: report.totals["hbm_bytes"].value,
    "tile-flops": lambda report: report.totals["flops"].value,
    "tile-host": lambda report: report.totals["host_us"].value,
    "tile-peak": lambda report: report.priced.memory.peak,
}


def compare(opened: Any, report: Report) -> None:
    """Every figure within a thousandth; those that are zero, or a rounding of it, against the whole."""
    floor = 1e-6 * report.timeline.wall_us
    for output, figure in FIGURES.items():
        assert opened.value(output) == pytest.approx(figure(report), rel=CLOSE, abs=floor), output
    assert opened.page.get_attribute("#out-bottleneck", "data-value") == (report.verdict.bottleneck or "")


def changed(
    report: Report, *, gpu: Mapping[str, Any] | None = None, host: Mapping[str, Any] | None = None
) -> Report:
    """The same graph priced with numbers of the profiles replaced; a dispatch time is that of all classes of calls."""
    pricing = report.pricing
    host = {**host, **ONE_FOR_ALL} if host and "dispatch_us" in host else host
    return price(
        report.graph,
        Pricing(
            msgspec.structs.replace(pricing.gpu, **gpu or {}),
            msgspec.structs.replace(pricing.host, **host or {}),
        ),
    )


@pytest.mark.parametrize("program", ["toy", "transformer"])
def test_untouched_it_shows_the_reports_own_figures(
    program: str, request: pytest.FixtureRequest, page_of: Any, open_page: Any
) -> None:
    report, file = page_of(request.getfixturevalue(program))
    compare(open_page(file), report)


@pytest.mark.parametrize("program", ["toy", "transformer"])
def test_sliders_give_what_pricing_gives(
    program: str, request: pytest.FixtureRequest, page_of: Any, open_page: Any
) -> None:
    report, file = page_of(request.getfixturevalue(program))
    opened = open_page(file)
    opened.slide("dispatch", 11.5)
    compare(opened, changed(report, host={"dispatch_us": 11.5}))
    opened.slide("launch", 0.7)
    host = {"dispatch_us": 11.5, "launch_us": 0.7}
    compare(opened, changed(report, host=host))
    opened.slide("bandwidth", 300)
    bandwidth = opened.value("out-bandwidth")
    assert bandwidth != pytest.approx(report.pricing.gpu.bandwidth_tb_s, rel=0.5)
    gpu: dict[str, Any] = {"bandwidth_tb_s": bandwidth}
    compare(opened, changed(report, host=host, gpu=gpu))
    opened.slide("peak", 200)
    dtype = opened.page.inner_text("label[for=knob-peak]").removeprefix("peak ")
    own = report.pricing.gpu.peak_flops(dtype, matmul=True)
    assert own is not None
    factor = opened.value("out-peak") / own
    assert factor < 0.5
    gpu["peak_tflops"] = {name: rate * factor for name, rate in report.pricing.gpu.peak_tflops.items()}
    slowed = changed(report, host=host, gpu=gpu)
    compare(opened, slowed)
    assert slowed.verdict.bottleneck == "compute"
    opened.page.click("#reset")
    opened.settle()
    compare(opened, report)


def test_a_synchronize_that_costs_is_part_of_the_wall_clock(
    toy: Path, tmp_path: Path, page_of: Any, open_page: Any
) -> None:
    report, _ = page_of(toy)
    slower = changed(report, host={"synchronize_us": 1000.0})
    assert slower.timeline.wall_us > report.timeline.wall_us
    render(slower, tmp_path / "slower.html")
    compare(open_page(tmp_path / "slower.html"), slower)


def test_another_gpu_and_another_l2_were_priced_by_python(toy: Path, page_of: Any, open_page: Any) -> None:
    report, file = page_of(toy)
    opened = open_page(file)
    for key in ("l4", "mi300x"):
        opened.choose("gpu", key)
        compare(opened, price(report.graph, Pricing(gpu_profiles()[key], report.pricing.host)))
    opened.choose("gpu", report.pricing.gpu.key)
    l2_bytes = report.pricing.gpu.l2_bytes // 4
    opened.choose("l2", str(l2_bytes))
    # The slider stands at the profile's own bandwidth: the one set by hand.
    compare(opened, changed(report, gpu={"l2_bytes": l2_bytes}))


@pytest.mark.parametrize("program", ["toy", "transformer"])
def test_schedules_are_the_rows_of_the_cures(
    program: str, request: pytest.FixtureRequest, page_of: Any, open_page: Any
) -> None:
    """A CUDA graph, fusion and both, as Python prices them; at other rates too."""
    report, file = page_of(request.getfixturevalue(program))
    opened = open_page(file)
    opened.slide("dispatch", 11.5)
    opened.slide("bandwidth", 300)
    bandwidth = opened.value("out-bandwidth")
    other = changed(report, host={"dispatch_us": 11.5}, gpu={"bandwidth_tb_s": bandwidth})
    for schedule, row in zip(("eager", "graph", "fused", "both"), other.cures.rows, strict=True):
        opened.choose("schedule", schedule)
        assert opened.value("out-wall") == pytest.approx(row.wall_us, rel=CLOSE), schedule
        assert opened.value("tile-launches") == row.launches, schedule
        assert opened.value("tile-hbm") == pytest.approx(row.hbm_bytes), schedule
        assert opened.value("tile-peak") == row.peak_bytes, schedule
        assert opened.page.get_attribute("#out-bottleneck", "data-value") == row.bottleneck, schedule


def test_the_toy_block_is_the_lessons_widget(toy: Path, page_of: Any, open_page: Any) -> None:
    """5 kernels; (3 + 4 x 2) x 32 MB = 352 MB, 107 us at 3.3 TB/s; 5 x (4 + 6) = 50 us. Small: 64 x 64 elements."""
    _, file = page_of(toy)
    opened = open_page(file)
    assert opened.value("out-plain-kernels") == 1 + 4
    assert opened.value("out-plain-bytes") == (3 + 4 * 2) * 32e6
    assert opened.value("out-plain-traffic") == pytest.approx(352 / 3.3, rel=1e-6)
    assert opened.value("out-plain-tax") == 5 * (4 + 6)
    assert opened.value("out-compute") > opened.value("out-launch")
    opened.page.check("#small")
    opened.settle()
    assert opened.value("out-elements") == 64 * 64
    assert opened.value("out-plain-bytes") == pytest.approx((3 + 4 * 2) * 64 * 64 * 2)
    assert opened.value("out-plain-traffic") < 0.1 < opened.value("out-plain-tax") == 5 * (4 + 6)
    assert opened.value("out-launch") > opened.value("out-memory") + opened.value("out-compute")
    assert opened.page.get_attribute("#out-bottleneck", "data-value") == "launch"
    opened.page.uncheck("#small")
    opened.slide("chain", 10)
    assert opened.value("out-plain-kernels") == 1 + 10
    assert opened.value("out-plain-bytes") == (3 + 10 * 2) * 32e6


def test_repeating_a_region_is_tracing_it_more_often(transformer: Path, page_of: Any, open_page: Any) -> None:
    """The whole program twice is two steps issued one behind the other."""
    report, file = page_of(transformer)
    opened = open_page(file)
    opened.page.focus("#graph-place canvas")
    opened.page.fill("#search", "aten")
    opened.page.press("#search", "Enter")
    opened.settle()
    launches = report.totals["launches"].value
    opened.slide("repeats", 2)
    assert opened.value("tile-launches") == 2 * launches
    assert opened.value("tile-hbm") == pytest.approx(2 * report.totals["hbm_bytes"].value)
    wall = opened.value("out-wall")
    # At least the slower of host and device twice, at most everything twice.
    busiest = max(report.totals["host_us"].value, report.exposed_device_us)
    assert 2 * busiest <= wall * (1 + CLOSE)
    assert wall <= 2 * report.timeline.wall_us * (1 + CLOSE)
