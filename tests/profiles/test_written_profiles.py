"""Profiles written to files: read back as they were, whole or not at all."""

import os

import msgspec
import pytest

from optrace.cost.profiles import find_gpu, find_host
from optrace.measuring.calibration import files
from optrace.measuring.calibration.files import write_profile


@pytest.mark.parametrize("name", ["h200", "h100"])
def test_a_gpu_comes_back(tmp_path, name):
    path = tmp_path / "gpu" / "mine.toml"
    mine = msgspec.structs.replace(find_gpu(name), key="mine", measured=True)
    write_profile(mine, path)
    assert find_gpu(str(path)) == mine
    assert os.listdir(path.parent) == ["mine.toml"]


def test_a_host_comes_back_without_what_is_not_known(tmp_path):
    path = tmp_path / "host.toml"
    host = find_host("default")
    assert host.python_loop_us is None
    write_profile(host, path)
    assert "python_loop_us" not in path.read_text()
    assert find_host(str(path)) == host


def test_what_was_not_measured_follows_the_version_that_reads_the_file(tmp_path):
    """Nothing calibrates compiled code: a file of today must not hold today's round numbers for tomorrow."""
    path = tmp_path / "host.toml"
    write_profile(find_host("default"), path)
    assert "compiled_" not in path.read_text()
    other = msgspec.structs.replace(find_host("default"), compiled_call_us=31.0)
    write_profile(other, path)
    assert find_host(str(path)) == other


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "host.toml"
    path.write_text("old")

    def full(_from, _to):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_profile(find_host("default"), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["host.toml"]
