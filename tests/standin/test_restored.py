"""Whatever is stood in for is torch's own again after the trace, also after an exception."""

import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from optrace.tracing import open_session
from optrace.tracing.standin import standin

CLASSES = (FakeTensor, torch.Tensor, torch.nn.Parameter, torch.nn.Module, torch.autograd.Function)


def snapshot():
    """Every name of every torch module and of the classes above, numbers and strings aside, and torch's switches."""
    modules = [m for n, m in sorted(sys.modules.items()) if n.partition(".")[0] == "torch" and m is not None]
    names = {
        (owner, name): value
        for owner in (*modules, *CLASSES)
        for name, value in vars(owner).items()
        if not name.startswith("__") and not issubclass(type(value), (int, float, str))
    }
    switches = (
        torch._C._only_lift_cpu_tensors(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch._C._is_multithreading_enabled(),
        len(_get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),
        list(sys.meta_path),
    )
    return names, switches


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
    names, switches = snapshot()
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
    after, switches_after = snapshot()
    assert switches_after == switches
    assert [key for key in names if after.get(key) is not names[key]] == []


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
