import pytest
import torch
from torch import nn

from optrace.tracing.standin import UnknownValueError, standin
from tests.standin.recording import names


def test_values_that_follow_from_constants_are_exact(gpu):
    x = torch.arange(4, device="cuda")
    assert (x * 2 + 1).sum().item() == 1 + 3 + 5 + 7
    assert bool((x > 2).any())
    assert x.tolist() == [0, 1, 2, 3]
    assert [round(r, 2) for r in torch.linspace(0, 0.1, 3).tolist()] == [0.0, 0.05, 0.1]
    assert x.cpu().numpy().sum() == 6
    assert f"{x.float().mean():.1f}" == "1.5"
    assert torch.unique(torch.tensor([3, 1, 3], device="cuda")).tolist() == [1, 3]


def test_shapes_that_follow_from_known_values_are_exact(gpu):
    mask = torch.tensor([True, False, True], device="cuda")
    data = torch.randn(3, 5, device="cuda")
    assert mask.nonzero().shape == (2, 1)
    assert data[mask].shape == (2, 5)
    assert torch.masked_select(data[:, 0], mask).shape == (2,)
    assert torch.repeat_interleave(torch.tensor([1, 2], device="cuda")).shape == (3,)


def test_writes_through_an_alias_are_seen(gpu):
    x = torch.zeros(4, device="cuda")
    x[1:3].add_(2)
    assert x.tolist() == [0, 2, 2, 0]


def test_unknown_writes_forget_what_was_known(gpu):
    x = torch.zeros(4, device="cuda")
    view = x[:2]
    x.copy_(torch.randn(4, device="cuda"))
    with pytest.raises(UnknownValueError):
        view.tolist()


def test_step_counters_stay_known(gpu):
    model = nn.Linear(2, 2, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(1, 2, device="cuda")).sum().backward()
        optimizer.step()
    assert optimizer.state[model.weight]["step"].item() == 3


def test_random_numbers_on_the_host_steer_the_program(gpu):
    assert sorted(torch.randperm(5).tolist()) == [0, 1, 2, 3, 4]
    assert 0 <= torch.rand(1).item() < 1


def test_unknown_value_stops_by_default_and_names_the_way_out(gpu):
    with pytest.raises(UnknownValueError) as error:
        torch.randn(3, device="cuda").sum().item()
    for way in ("test_values.py:", "--mode cpu", "mode='cpu'", "--assume zero", "assume='zero'"):
        assert way in str(error.value)
    assert gpu.guesses == []


@pytest.mark.parametrize(
    ("assume", "number", "flag", "found"), [("zero", 0.0, False, 0), ("worst", 0.0, True, 3)]
)
def test_guesses_are_made_only_when_asked_and_are_listed(assume, number, flag, found):
    with standin(assume=assume) as gpu:
        x = torch.randn(3, device="cuda")
        assert x.sum().item() == number
        assert bool((x > 0).all()) is flag
        assert (x > 0).nonzero().shape == (found, 1)
        assert [g.op for g in gpu.guesses] == [
            "aten._local_scalar_dense.default",
            "aten._local_scalar_dense.default",
            "aten.nonzero.default",
        ]


def test_gradient_scaling_assumes_an_ordinary_step_and_says_so(gpu):
    model = nn.Linear(4, 4, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(2, 4, device="cuda")).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    step()
    calls = names(gpu, step)
    assert "_amp_foreach_non_finite_check_and_unscale_" in calls
    assert "_foreach_add_.List" in calls  # the optimizer did step
    assert {g.op for g in gpu.guesses} == {"aten._amp_foreach_non_finite_check_and_unscale_.default"}
    assert "no gradient of the GradScaler overflowed" in str(gpu.guesses[0])


def test_exceptions_raised_during_backward_arrive(gpu):
    x = torch.randn(3, device="cuda", requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()

    class AsksForAValue(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * grad.sum().item() * torch.randn((), device="cuda").item()

    with pytest.raises(UnknownValueError):
        AsksForAValue.apply(x).sum().backward()
