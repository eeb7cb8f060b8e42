"""``optrace calibrate`` where there is no GPU, and what it says and keeps of a calibration."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from rich.console import Console

from cli import calibrate
from cli.errors import BadInput
from optrace.cost import profiles
from optrace.cost.device.kernel import Kernel
from optrace.cost.profiles import GpuProfile, find_gpu, find_host, pricing
from optrace.measuring.calibration.ceilings import Ceilings
from optrace.measuring.calibration.device import GpuCalibration, note, with_ceilings, with_floor
from optrace.measuring.calibration.device_launches import Sweep
from optrace.measuring.calibration.fit import KindFit, TimedLaunch
from tests.cli.conftest import Command

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


@without_gpu
def test_without_a_gpu_is_one_clear_error(optrace: Command, tmp_path: Path) -> None:
    ran = optrace("calibrate", "--save", str(tmp_path / "here"))
    assert ran.code == 2
    assert ran.err.startswith("optrace: calibrate measures a CUDA GPU, and this machine has none")
    assert ran.err.count("\n") == 1
    assert ran.out == ""
    assert not (tmp_path / "here").exists()


def test_a_folder_is_of_no_use_without_save(optrace: Command) -> None:
    ran = optrace("calibrate", "here")
    assert ran.code == 2
    assert "give --save too" in ran.err


CEILINGS = Ceilings(
    copies={1 << 20: 2.0, 1 << 28: 4.2, 1 << 29: 4.32},
    l2_tb_s=14.0,
    l2_bytes=50 << 20,
    matrix={"bfloat16, square": 742.05},
    launch_period_us=5.5,
    graph_replay_us=40.0,
    graph_launch_us=2.4,
)


@pytest.fixture
def shipped() -> GpuProfile:
    return find_gpu("h200")


def test_ceilings_in_a_profile(shipped: GpuProfile) -> None:
    found = with_ceilings(shipped, CEILINGS)
    assert found.bandwidth_efficiency == 0.9  # 4.32 of 4.8 TB/s
    assert (found.graph_replay_us, found.graph_launch_us) == (40.0, 2.4)
    assert found.matmul_efficiency == 0.75  # 742.05 of 989.4 TFLOP/s
    # Bytes from the L2 take as long as before: the rate goes with the bandwidth that it is relative to.
    assert shipped.kernels["cast"].l2 / shipped.l2_bandwidth_tb_s == pytest.approx(
        found.kernels["cast"].l2 / 14.0
    )


def test_the_least_kernel(shipped: GpuProfile) -> None:
    timed = (
        TimedLaunch(Kernel("vectorized", 4096.0), 0.0, 1.4),
        TimedLaunch(Kernel("vectorized", 4096.0), 0.0, 1.2),
        TimedLaunch(Kernel("vectorized", 8192.0), 0.0, 9.0),
        TimedLaunch(Kernel("vectorized", 1e9), 1e9, 0.1),
        TimedLaunch(Kernel("small"), 0.0, 0.9),
    )
    assert with_floor(shipped, timed).kernel_floor_us == 1.4
    assert with_floor(shipped, ()) == shipped


def calibration(shipped: GpuProfile) -> GpuCalibration:
    kinds = {"vectorized": KindFit(30, 0.2, 0.04)}
    profile = msgspec.structs.replace(
        with_ceilings(shipped, CEILINGS), measured=True, note=note(shipped, kinds, shipped)
    )
    return GpuCalibration(profile, shipped, CEILINGS, Sweep((), 1, (), 0), kinds, ())


def test_the_tables_tell_measured_from_shipped(shipped: GpuProfile) -> None:
    found = calibration(shipped)
    out = Console(width=200)
    with out.capture() as captured:
        for table in (
            calibrate.gpu_table(found),
            calibrate.kinds_table(found),
            calibrate.host_table(find_host("default"), find_host("default")),
        ):
            out.print(table)
    text = captured.get()
    rows = {line.split("  ")[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["HBM, TB/s"][-2] == "4.32"
    assert rows["L2 holds, MiB"][-2] == "50"
    assert rows["vectorized"] == ["vectorized", "30", "4.0%", "20.0%"]
    assert "Not measured here but measured on an H200: " in found.profile.note
    assert "cast" in found.profile.note


def test_what_is_kept_is_found_by_later_runs(
    shipped: GpuProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "user_config_path", lambda _name: tmp_path)
    monkeypatch.setattr(profiles.platform, "node", lambda: "box")
    profile = calibration(shipped).profile
    host = msgspec.structs.replace(find_host("default"), key="box", launch_us=2.25, measured=True)
    # Past the caches, which other tests share.
    monkeypatch.setattr(profiles, "gpu_profiles", lambda: profiles._load("gpu", GpuProfile))
    monkeypatch.setattr(profiles, "host_profiles", lambda: profiles._load("host", profiles.HostProfile))
    lines = list(calibrate._kept(profile, host, None))
    assert lines[0] == f"wrote {tmp_path / 'gpu' / 'h200.toml'}: --gpu h200"
    found = pricing()
    assert found.gpu.l2_bandwidth_tb_s == 14.0
    assert found.gpu.measured
    assert found.host.launch_us == 2.25


def test_a_folder_that_cannot_be_written(shipped: GpuProfile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"cannot write the profile .*file/gpu/h200.toml"):
        list(calibrate._kept(calibration(shipped).profile, find_host("default"), tmp_path / "file"))
