"""What is in the way of a calibration, by the driver's answers; profiles of GPUs that nothing ships for."""

import subprocess
from types import SimpleNamespace

import pytest

from optrace.cost.profiles import find_gpu
from optrace.measuring.calibration import device, machine
from optrace.measuring.calibration.ceilings import Ceilings
from optrace.measuring.calibration.device import shipped_profile

CEILINGS = Ceilings({1 << 28: 0.9, 1 << 29: 0.8}, 2.0, None, {}, 5.0, None, None)


@pytest.fixture
def driver(monkeypatch):
    """The driver's tool answers what is put here."""
    answers = []

    def run(command, **_):
        assert command[-1] == "GPU-1234"
        if isinstance(answers[0], Exception):
            raise answers[0]
        return SimpleNamespace(stdout=answers[0])

    monkeypatch.setattr(machine.shutil, "which", lambda _: "/usr/bin/tool")
    monkeypatch.setattr(machine.subprocess, "run", run)
    monkeypatch.setattr(machine.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(machine.torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    return answers


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("0x0000000000000000, 1980, 1980\n", []),
        ("0x0000000000000001, 345, 1980\n", []),  # idle
        (
            "0x0000000000000004, 1785, 1980\n",
            ["the clock is held down by the power limit (1785 of 1980 MHz)"],
        ),
        (
            "0x0000000000000048, 900, 1980\n",
            ["the clock is held down by the hardware and the hardware, for heat (900 of 1980 MHz)"],
        ),
        ("[N/A], [N/A], [N/A]\n", []),
        (subprocess.TimeoutExpired("tool", 5), []),
    ],
)
def test_clocks(driver, answer, says):
    driver.append(answer)
    assert machine.throttled() == says


def test_others(driver, monkeypatch):
    monkeypatch.setattr(machine.torch.cuda, "mem_get_info", lambda: (60 << 30, 80 << 30))
    monkeypatch.setattr(machine.torch.cuda, "memory_reserved", lambda: 4 << 30)
    driver.append("97\n")
    busy, memory = machine.others_at_work()
    assert "97 %" in busy
    assert "16.0 GiB" in memory  # 80 - 60 - 4


@pytest.fixture
def properties(monkeypatch):
    found = {"sm_count": 66, "memory_bytes": 24 << 30, "l2_bytes": 48 << 20}
    monkeypatch.setattr(device, "_properties", lambda: found)
    monkeypatch.setattr(device, "measure_ceilings", lambda _l2: CEILINGS)
    monkeypatch.setattr(device.torch.cuda, "get_device_capability", lambda: (8, 9))


@pytest.mark.usefixtures("properties")
def test_a_known_gpu_with_what_torch_says_of_it():
    found = shipped_profile("NVIDIA H100 80GB HBM3")
    assert (found.key, found.sm_count, found.l2_bytes) == ("h100", 66, 48 << 20)
    assert found.bandwidth_tb_s == find_gpu("h100").bandwidth_tb_s
    assert set(found.kernels) == set(find_gpu("h200").kernels)


@pytest.mark.usefixtures("properties")
def test_a_gpu_that_nothing_ships_for():
    found = shipped_profile("Unheard Of 9000")
    assert (found.key, found.name, found.capability) == ("unheard-of-9000", "Unheard Of 9000", (8, 9))
    assert found.bandwidth_tb_s == 1.0  # 0.9 of it was reached
    assert found.l2_bandwidth_tb_s == 2.0
    # 66 of an H200's 132 SMs
    assert found.peak_tflops["float32"] == pytest.approx(find_gpu("h200").peak_tflops["float32"] / 2, abs=0.1)
    assert not found.measured
