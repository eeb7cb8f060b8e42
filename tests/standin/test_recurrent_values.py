"""Recurrent networks whose weights and inputs are known: what only CUDA has is not asked of the CPU."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from optrace.tracing import open_session
from optrace.tracing.standin import UnknownValueError, standin

NETWORKS = pytest.mark.parametrize("network", [nn.LSTM, nn.GRU, nn.RNN])


def trained(network, device, mode):
    """The calls of a training step of a copy, made while tracing, of a network made before."""
    made_before = network(4, 8, num_layers=2, bidirectional=True)
    with open_session(mode, device=device) as session:
        model = session.place(deepcopy(made_before))
        x = session.place(torch.zeros(5, 3, 4)).requires_grad_()
        with session.recording():
            model(x)[0].sum().backward()
        assert x.grad.shape == x.shape
        assert all(p.grad.shape == p.shape for p in model.parameters())
    return [node.op for node in session.graph]


@NETWORKS
@pytest.mark.parametrize("mode", ["fake", "cpu"])
def test_on_the_gpu_is_one_call_of_cudnn(network, mode):
    calls = trained(network, "cuda", mode)
    assert calls.count("aten._cudnn_rnn.default") == calls.count("aten._cudnn_rnn_backward.default") == 1


@NETWORKS
@pytest.mark.parametrize("mode", ["fake", "cpu"])
def test_on_the_cpu_is_what_the_cpu_runs(network, mode):
    calls = trained(network, "cpu", mode)
    assert not [call for call in calls if "cudnn" in call]


@NETWORKS
def test_weights_keep_their_values_in_cudnns_buffer(network):
    before = network(4, 8)
    with standin():
        model = deepcopy(before).cuda()
        assert len({p.untyped_storage()._cdata for p in model.parameters()}) == 1
        after = {name: p.tolist() for name, p in model.named_parameters()}
    assert after == {name: p.tolist() for name, p in before.named_parameters()}


def test_a_workspace_of_another_size_on_the_cpu_has_no_values():
    """torch describes the workspace of the CPU's LSTM as empty; the rest of its results is known."""
    before = nn.LSTM(4, 8)
    with standin():
        out, _ = deepcopy(before)(torch.zeros(2, 1, 4))
        values = out.tolist()
    assert torch.tensor(values).allclose(before(torch.zeros(2, 1, 4))[0])


def test_an_op_without_a_cpu_kernel_leaves_its_result_unknown(gpu):
    known = torch.ones(1, 8, 2, 16, device="cuda", dtype=torch.float16)
    out, *_ = torch.ops.aten._efficient_attention_forward(
        known, known, known, None, None, None, None, None, 0.0, 0
    )
    assert out.shape == (1, 8, 2, 16)
    with pytest.raises(UnknownValueError):
        out.tolist()
