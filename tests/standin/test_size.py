"""What a large model takes: in a process of its own, whose peak of memory is this trace's and no other test's."""

import subprocess
import sys

import pytest

TRACE = """
import resource

import torch
from torch import nn

from optrace.tracing import open_session

width, layers = 29_600, 80
with open_session("fake") as session:
    x = torch.randn(2048, width, device="cuda", dtype=torch.bfloat16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = nn.Sequential(
        *(nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(layers))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session.recording():
        model(x).sum().backward()
        optimizer.step()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(sum(storage.nbytes for storage in session.graph.storages if storage.kind == "parameter"), grown)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts KiB on Linux")
def test_seventy_billion_parameters_take_no_memory():
    ran = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=True)
    parameter_bytes, grown_kib = map(int, ran.stdout.split())
    assert parameter_bytes == 2 * 80 * 29_600**2  # 140 GB
    assert grown_kib < 2**20
