"""Moving modules while somebody watches, and with graphs of earlier calls alive."""

import weakref

import pytest
import torch
from torch import nn

from optrace.tracing.standin import standin


def test_a_watched_parameter_keeps_its_identity():
    with standin():
        layer = nn.Linear(4, 4)
        weight = layer.weight
        watch = weakref.ref(weight)
        layer.cuda().half()
        assert layer.weight is weight is watch()
        assert isinstance(weight, nn.Parameter)
        assert (weight.device.type, weight.dtype, weight.requires_grad) == ("cuda", torch.float16, True)


@pytest.mark.parametrize("kept", [True, False])
def test_a_graph_of_an_earlier_call_does_not_stop_a_move(kept):
    with standin():
        layer = nn.Linear(4, 4)
        out = layer(torch.ones(1, 4))
        if not kept:
            del out
        layer.to("cuda")
        layer(torch.ones(1, 4, device="cuda")).sum().backward()
        assert layer.weight.grad.device.type == "cuda"


def test_tied_weights_stay_tied():
    with standin():
        first, second = nn.Linear(4, 4), nn.Linear(4, 4)
        second.weight = first.weight
        model = nn.Sequential(first, second).to(device="cuda", dtype=torch.bfloat16)
        assert model[0].weight is model[1].weight
        assert model[0].weight.dtype == torch.bfloat16


def test_torch_swaps_again_as_before():
    before = torch.utils.swap_tensors
    with standin():
        assert torch.utils.swap_tensors is not before
    assert torch.utils.swap_tensors is before
