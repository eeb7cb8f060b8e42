"""A calibration on a real GPU, whole: about a minute."""

import pytest
import torch
from optrace.cli.dispatch import main

from optrace.cost.profiles import find_gpu, find_host
from optrace.tracing.session import stood_in_before

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(
        stood_in_before(), reason="a stand-in was active in this process: run pytest tests/cuda by itself"
    ),
]


def test_a_calibration_is_kept_and_read_again(tmp_path, capsys):
    assert main(["calibrate", "--save", str(tmp_path)]) == 0
    told = capsys.readouterr()
    (gpu_file,) = (tmp_path / "gpu").iterdir()
    (host_file,) = (tmp_path / "host").iterdir()
    gpu, host = find_gpu(str(gpu_file)), find_host(str(host_file))
    assert gpu.measured
    assert host.measured
    assert 0.2 < gpu.bandwidth_efficiency <= 1.0
    assert gpu.kernel_floor_us > 0.3
    assert 0 < gpu.graph_replay_us < 200
    assert 0.5 < host.launch_us < 50
    assert all(us > 0 for us in host.class_us.values())
    assert "driver" in gpu.source
    assert "kinds of kernels" in told.out
    assert "single ops" in told.err
