"""A finished trace as a ``torch.fx.GraphModule``: it does what eager did, and says so as torch's tracers do."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import optrace
from optrace.tracing import TraceError
from optrace.tracing.fx import FxError
from tests.bridge.replay import Step, calls_of, replayed


def traced(run: Callable[[], Any]) -> tuple[optrace.Trace, Any]:
    with optrace.trace(mode="cpu", device="cpu", keep_values=True) as trace:
        result = run()
    return trace, result


def ops(module: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


# -- programs that exercise one thing each --------------------------------------------------------------


class Net(nn.Module):
    """Linear, batch norm in training, dropout: written buffers and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = (
            nn.Linear(6, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.drop(torch.tanh(self.norm(self.a(x)))))


def training(optimizer: Callable[..., torch.optim.Optimizer], **options: Any) -> Step:
    model = Net()
    steps = optimizer(model.parameters(), **options)
    x, y = torch.randn(5, 6), torch.randint(3, (5,))

    def step() -> Tensor:
        steps.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        return loss

    return Step(step, (model,), (steps,))


def accumulating() -> Step:
    """Gradients that are there before, zeroed in place and added to."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    model(x).sum().backward()

    def step() -> Tensor:
        model.zero_grad(set_to_none=False)
        loss = model(x).square().sum() + model(2 * x).sum()
        loss.backward()
        return loss

    return Step(step, (model,))


def writing_through_views() -> Step:
    cache, x = torch.zeros(4, 3), torch.randn(3)

    def step() -> tuple[Tensor, Tensor]:
        cache[1] = x
        cache[2:].add_(1)
        first, *_ = cache.unbind()
        first.copy_(x.flip(0))
        return cache.sum(), cache.t().contiguous()

    return Step(step)


def writing_where_told() -> Step:
    x, out = torch.randn(4), torch.empty(4)
    return Step(lambda: (torch.exp(x, out=out), out + 1))


def lists_and_several_results() -> Step:
    xs = [torch.randn(3), torch.randn(2, 2)]

    def step() -> list[Tensor]:
        torch._foreach_mul_(xs, 2.0)
        scaled = torch._foreach_add(xs, [1.0, 2.0])
        values, places = scaled[1].sort(dim=-1)
        return [*scaled, values, places, *torch.cat([x.flatten() for x in xs]).split([3, 4])]

    return Step(step)


def constants() -> Step:
    x = torch.randn(3)

    def step() -> Tensor:
        return x * torch.tensor([1.0, -0.0, float("inf")]) + torch.from_numpy(torch.ones(3).numpy() * 2)

    return Step(step)


def generators() -> Step:
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    return Step(
        lambda: (torch.rand(4, generator=generator), torch.randn(3), torch.rand(4, generator=generator))
    )


def relaid_in_place() -> Step:
    def step() -> Tensor:
        x = torch.arange(6.0)
        y = x * 2
        y.resize_(2, 3).t_()
        y.unsqueeze_(0)
        return y + 1

    return Step(step)


def no_gradient_of_one() -> Step:
    a, b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
    frozen = torch.randn(3)
    model = nn.ParameterList([a, b])

    def step() -> Tensor:
        conv = F.conv1d(frozen.view(1, 1, 3), a.view(1, 1, 3))  # no gradient for its input
        loss = conv.sum()
        loss.backward()
        return loss

    return Step(step, (model,))


def second_order() -> Step:
    x = torch.randn(3, requires_grad=True)

    def step() -> tuple[Tensor, ...]:
        (first,) = torch.autograd.grad(x.tanh().prod(), x, create_graph=True)
        return first, *torch.autograd.grad(first.square().sum(), x)

    return Step(step)


def data_of_a_parameter() -> Step:
    model = nn.Linear(2, 2)

    def step() -> Tensor:
        model.weight.data.mul_(3)
        model.bias.data[0] = 4
        return model(torch.ones(1, 2)).detach()

    return Step(step, (model,))


def complex_numbers() -> Step:
    x = torch.randn(4, dtype=torch.complex64, requires_grad=True)

    def step() -> tuple[Tensor, ...]:
        y = (x.conj() * x).real + x.conj().imag
        return y, *torch.autograd.grad(y.sum(), x)

    return Step(step)


def inference_mode() -> Step:
    model, x = Net().eval(), torch.randn(2, 6)

    def step() -> Tensor:
        with torch.inference_mode():
            return model(x)

    return Step(step, (model,))


PROGRAMS: dict[str, Callable[[], Step]] = {
    "adamw": lambda: training(torch.optim.AdamW, lr=1e-2),
    "adam, one tensor at a time": lambda: training(torch.optim.Adam, foreach=False),
    "adam, foreach": lambda: training(torch.optim.Adam, foreach=True),
    "adamw, fused": lambda: training(torch.optim.AdamW, fused=True),
    "sgd with momentum": lambda: training(torch.optim.SGD, lr=0.1, momentum=0.9),
    **{
        make.__name__.replace("_", " "): make
        for make in (
            accumulating,
            writing_through_views,
            writing_where_told,
            lists_and_several_results,
            constants,
            generators,
            relaid_in_place,
            no_gradient_of_one,
            second_order,
            data_of_a_parameter,
            complex_numbers,
            inference_mode,
        )
    },
}


@pytest.mark.parametrize("warm", [False, True], ids=["first step", "second step"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_module_does_what_eager_did_bit_for_bit(name: str, warm: bool) -> None:
    torch.manual_seed(0)
    step = PROGRAMS[name]()
    if warm:
        step.run()
    replay = replayed(step)
    replay.module.graph.lint()
    assert replay.compared
    assert replay.differ == {}
    assert replay.same_calls


# -- what the module is -----------------------------------------------------------------------------------


def test_attributes_bear_the_models_names_and_inputs_come_in_order_of_use() -> None:
    model, x, y = Net(), torch.randn(5, 6), torch.randn(3)
    trace, out = traced(lambda: model(x) + y)
    module = trace.to_fx(outputs=out)
    signature = module.meta["optrace"]
    assert set(module.state_dict()) == set(model.state_dict())
    assert signature.inputs == ("input_1", "input_2")
    assert torch.equal(signature.example_inputs[0], x)
    assert signature.written == ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")


def test_inputs_are_chosen_and_ordered_by_the_caller() -> None:
    x, y, w = torch.randn(2), torch.randn(2), torch.randn(2)
    trace, out = traced(lambda: x * w + y)
    module = trace.to_fx(inputs=(y, x), outputs=out)
    other = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    assert torch.equal(module(*other)[0], other[1] * w + other[0])
    assert torch.equal(module._tensor_constant0, w)


def test_two_modules_of_one_trace_start_alike_and_share_nothing_that_they_write() -> None:
    step = training(torch.optim.SGD, lr=0.1)
    before = step.models[0].a.weight.clone()
    trace, _ = traced(step.run)
    first, second = trace.to_fx(), trace.to_fx()
    with first.meta["optrace"].seeded():
        first(*first.meta["optrace"].example_inputs)
    assert torch.equal(first.a.weight, step.models[0].a.weight)
    assert not torch.equal(first.a.weight, before)
    assert torch.equal(second.a.weight, before)


def test_what_is_left_alive_is_returned_and_what_autograd_holds_is_not() -> None:
    x = torch.randn(3, requires_grad=True)
    kept: list[Tensor] = []

    def run() -> Tensor:
        hidden = x.exp().tanh()
        kept.append(torch.ones(2))
        return hidden * hidden

    trace, out = traced(run)
    module = trace.to_fx()
    found = module(x.detach())
    assert len(found) == 2
    assert torch.equal(found[0], kept[0])
    assert torch.equal(found[1], out.detach())


def test_autograd_goes_through_a_forward_pass_again() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    trace, out = traced(lambda: model(x))
    out.sum().backward()
    module = trace.to_fx(outputs=out)
    (again,) = module(x)
    again.sum().backward()
    assert torch.equal(module.weight.grad, model.weight.grad)


def test_values_read_on_the_host_are_guards() -> None:
    x = torch.tensor([1.0, 2.0])

    def run() -> Tensor:
        return x * 2 if x.sum() > 0 else x[x > 1]

    trace, _ = traced(run)
    (guard,) = trace.to_fx().meta["optrace"].guards
    assert (guard.op, guard.found) == ("aten._local_scalar_dense.default", "True")
    assert "test_to_fx.py" in str(guard)
    trace, _ = traced(lambda: x[x > 1])
    assert [guard.found for guard in trace.to_fx().meta["optrace"].guards] == ["float32[1]"]


def test_nodes_say_what_torchs_tracers_say_and_what_the_call_costs() -> None:
    model, x = Net(), torch.randn(5, 6)
    trace, out = traced(lambda: model(x).sum())
    module = trace.to_fx(outputs=out)
    node = next(node for node in module.graph.nodes if node.name == "addmm")
    assert node.meta["val"].shape == (5, 8)
    assert node.meta["val"].device.type == "cpu"
    assert node.meta["tensor_meta"].dtype is torch.float32
    assert list(node.meta["nn_module_stack"].values()) == [
        ("", f"{__name__}.Net") if not __name__.startswith("tests") else ("", f"{Net.__module__}.Net"),
        ("a", "torch.nn.modules.linear.Linear"),
    ]
    assert "in forward" in node.meta["stack_trace"]
    assert "self.b(self.drop(" in node.meta["stack_trace"]
    record = node.meta["optrace"]
    assert record["matmul_flops"] == 2 * 5 * 6 * 8
    assert record["flops"] == 2 * 5 * 6 * 8 + 5 * 8
    assert record["phase"] == "forward"


def test_each_val_has_the_layout_of_the_value() -> None:
    model, x = nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    trace, out = traced(lambda: model(x)[:, 1:])
    module = trace.to_fx(outputs=out)

    class Check(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            value = super().run_node(n)
            if isinstance(value, Tensor):
                said = n.meta["val"]
                assert (said.shape, said.stride(), said.storage_offset()) == (
                    value.shape,
                    value.stride(),
                    value.storage_offset(),
                )
            return value

    Check(module).run(x)


# -- passes -------------------------------------------------------------------------------------------------


def test_dead_code_goes_and_mutations_stay() -> None:
    step = training(torch.optim.AdamW, lr=1e-2)
    step.run()
    trace, loss = traced(step.run)
    module = trace.to_fx(outputs=loss)
    reads = "aten._local_scalar_dense.default"
    assert reads in calls_of(module)
    module.graph.eliminate_dead_code()
    module.recompile()
    module.graph.lint()
    assert reads not in calls_of(module)
    signature = module.meta["optrace"]
    with signature.seeded():
        module(*signature.example_inputs)
    for name, parameter in step.models[0].named_parameters():
        assert torch.equal(module.get_parameter(name), parameter)


def test_the_module_is_copied_retraced_and_transformed() -> None:
    step = training(torch.optim.SGD, lr=0.1, momentum=0.9)
    step.run()
    trace, loss = traced(step.run)
    module = copy.deepcopy(trace.to_fx(outputs=loss))
    assert "torch.ops.aten.addmm.default" in module.code
    again = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    through = torch.fx.Transformer(again).transform()
    with module.meta["optrace"].seeded(), torch.no_grad():
        (found, *_) = through(*module.meta["optrace"].example_inputs)
    assert torch.equal(found, loss)


def test_it_draws_with_torchs_own_drawer() -> None:
    pytest.importorskip("pydot")
    from torch.fx.passes.graph_drawer import FxGraphDrawer

    trace, _ = traced(lambda: nn.Linear(2, 2)(torch.ones(1, 2)))
    assert "addmm" in FxGraphDrawer(trace.to_fx(), "traced").get_dot_graph().to_string()


# Importing Inductor warns of a function of torch's own.
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
# Not Adam: it makes whole steps of the rounding noise that a bias before a batch norm has for a gradient.
@pytest.mark.parametrize("name", ["sgd with momentum", "writing through views"])
def test_inductor_compiles_it(name: str) -> None:
    from tests.bridge.compiled import compiled_by_inductor

    step = PROGRAMS[name]()
    step.run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's own imports warn
        assert compiled_by_inductor(replayed(step)) < 1


# -- without values -------------------------------------------------------------------------------------------


def test_a_pretended_gpus_trace_has_metas_and_no_values() -> None:
    with optrace.trace(gpu="h100") as trace:
        model = nn.Linear(3, 2).to("cuda")
        model(torch.randn(4, 3, device="cuda")).sum().backward()
    module = trace.to_fx()
    module.graph.lint()
    assert calls_of(module) == [node.op for node in trace.graph]
    addmm = next(node for node in module.graph.nodes if node.name == "addmm")
    assert str(addmm.meta["val"].device) == "cuda:0"
    assert addmm.meta["optrace"]["kernels"] == 1


def test_values_can_be_loaded_into_a_module_that_has_none() -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with optrace.trace(mode="cpu", device="cpu") as trace:
        out = model(x)
    module = trace.to_fx()
    with pytest.raises(FxError, match="keep_values=True"):
        module(x)
    module.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(module(x)[0], out)


# -- bad input ------------------------------------------------------------------------------------------------


def test_a_running_trace_has_no_module_yet() -> None:
    with optrace.trace(mode="cpu", device="cpu") as trace, pytest.raises(RuntimeError, match="still running"):
        trace.to_fx()


def test_a_tensor_that_the_trace_does_not_know() -> None:
    trace, _ = traced(lambda: torch.ones(2) + 1)
    with pytest.raises(
        FxError, match=r"outputs: no call of the trace read or made tensor 0, of shape \(7,\)"
    ):
        trace.to_fx(outputs=torch.ones(7))


def test_outputs_are_tensors_and_need_values() -> None:
    with optrace.trace(mode="cpu", device="cpu") as trace:
        out = torch.ones(2) + 1
    with pytest.raises(FxError, match="keep_values=True"):
        trace.to_fx(outputs=out)


def test_there_are_no_values_to_keep_where_nothing_is_computed() -> None:
    with pytest.raises(TraceError, match="no values to keep"), optrace.trace(mode="fake", keep_values=True):
        pass


def test_importing_optrace_imports_no_torch() -> None:
    code = "import sys, optrace; assert 'torch' not in sys.modules; optrace.from_fx; optrace.backend"
    subprocess.run([sys.executable, "-c", code], check=True)
