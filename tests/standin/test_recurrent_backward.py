"""The backward pass of a cuDNN RNN: its shapes come from its own arguments, nothing is asked of unknown values."""

import pytest
import torch
from torch import nn

from optrace.tracing.standin import standin


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_input_gradients_lie_as_the_input_does(kind, batch_first, dropout):
    with standin():  # unknown values are errors
        rnn = kind(8, 16, 2, batch_first=batch_first, dropout=dropout).cuda()
        x = torch.randn(3, 5, 8, device="cuda", requires_grad=True)
        out, _ = rnn(x)
        out.sum().backward()
        assert x.grad.shape == x.shape
        assert rnn.weight_ih_l0.grad.shape == rnn.weight_ih_l0.shape


def test_packed_sequences():
    with standin():
        rnn = nn.LSTM(8, 16).cuda()
        x = torch.randn(5, 3, 8, device="cuda")
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]))
        out, _ = rnn(packed)
        out.data.sum().backward()
        assert out.data.shape == (5 + 4 + 2, 16)
