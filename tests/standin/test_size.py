import resource

import torch
from torch import nn

from optrace.tracing import open_session


def test_seventy_billion_parameters_take_no_memory():
    width, layers = 29_600, 80
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_session("fake") as session:
        model = nn.Sequential(
            *(nn.Linear(width, width, bias=False, device="cuda", dtype=torch.bfloat16) for _ in range(layers))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(2048, width, device="cuda", dtype=torch.bfloat16)
        with session.recording():
            model(x).sum().backward()
            optimizer.step()
    sizes = [storage.nbytes for storage in session.graph.storages if storage.kind == "parameter"]
    assert sum(sizes) == 2 * 80 * 29_600**2  # 140 GB
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 1024**2
