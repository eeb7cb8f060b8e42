"""Whatever is stood in for is torch's own again after the trace, also after an exception."""

import pytest
import torch

from optrace.tracing import open_session
from optrace.tracing.standin import standin
from tests.standin.torch_state import torch_state


def work():
    model = torch.nn.Linear(4, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda", dtype=torch.bfloat16):
        model(torch.randn(2, 4, device="cuda")).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("values", ["small", "all"])
@pytest.mark.parametrize("ends", ["well", "in an exception", "in an exception in backward"])
def test_every_name_and_switch_of_torch_is_as_before(values, ends):
    with standin(values=values):  # imports and caches
        work()
    before = torch_state()
    try:
        with standin(values=values):
            work()
            if ends == "in an exception":
                raise ZeroDivisionError
            if ends == "in an exception in backward":
                y = torch.ones(2, device="cuda", requires_grad=True) * 2
                y.register_hook(lambda grad: 1 / 0)
                y.sum().backward()
    except ZeroDivisionError:
        assert ends != "well"
    assert before.changed_in(torch_state()) == []


def test_the_cpu_computes_as_before():
    with standin():
        work()
    x = torch.ones(2, 2, requires_grad=True)
    (x @ x).sum().backward()
    assert x.grad.tolist() == [[4, 4], [4, 4]]
    assert not torch.cuda.is_available() or torch.cuda.device_count()


def test_an_interrupt_restores_too():
    before = torch.cuda.is_available

    def interrupted():
        torch.zeros(2, device="cuda")
        raise KeyboardInterrupt

    with open_session("fake") as session, pytest.raises(KeyboardInterrupt), session.recording():
        interrupted()
    assert torch.cuda.is_available is before
    assert session.graph.info.incomplete == ("the run stopped with KeyboardInterrupt after 1 calls",)
