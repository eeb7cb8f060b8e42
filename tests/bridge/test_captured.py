"""Graphs that torch captured, priced as a trace is."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import optrace
from optrace.api import TraceOptions
from optrace.tracing import open_session
from optrace.tracing.fx import FxError, run_captured


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    """torch warns about itself: export of its tree specs, Dynamo of the hooks of a trace."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg|torch.*")
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


CALLS = ["aten.t.default", "aten.addmm.default", "aten.relu.default"]
CALLS += ["aten.t.default", "aten.addmm.default", "aten.add.Tensor"]


def ops(trace: optrace.Trace) -> list[str]:
    """The calls, without the copies that autograd keeps."""
    return [node.op for node in trace.graph if node.op != "aten.detach.default"]


def test_an_exported_program_is_priced_on_the_pretended_gpu() -> None:
    program = torch.export.export(Block(), (torch.randn(8, 64),))
    trace = optrace.from_fx(program, gpu="h100")
    assert ops(trace) == CALLS
    assert {tensor.device for node in trace.graph for tensor in node.inputs} == {"cuda:0"}
    # Two products of [8, 64] and [64, 128], 2 FLOPs a multiply-add.
    assert trace.report().totals["matmul_flops"].value == 2 * (2 * 8 * 64 * 128)
    assert [node.module.path for node in trace.graph if node.module] == [
        *["Block.up"] * 2,
        "Block",
        *["Block.down"] * 2,
        "Block",
    ]


def test_the_price_is_that_of_a_trace_of_the_same_call() -> None:
    model, x = Block(), torch.randn(8, 64)
    captured = optrace.from_fx(make_fx(model)(x), x)
    with optrace.trace() as traced, torch.no_grad():
        with torch.device("cuda"):
            model, x = Block(), torch.randn(8, 64)
        with optrace.step():
            model(x)
    expected, found = traced.report().totals, captured.report().totals
    for name in ("launches", "kernels", "tensor_bytes", "flops"):
        assert found[name].value == expected[name].value, name


def test_a_traces_own_module_comes_back_call_for_call() -> None:
    with optrace.trace(gpu="a100") as traced:
        with torch.device("cuda"):
            model, x = Block(), torch.randn(8, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with optrace.step():
            model(x).square().mean().backward()
            optimizer.step()
    again = optrace.from_fx(traced.to_fx(), gpu="a100")
    assert [node.op for node in again.graph] == [node.op for node in traced.graph]
    assert [node.module for node in again.graph] == [node.module for node in traced.graph]
    assert [node.phase for node in again.graph] == [node.phase for node in traced.graph]
    assert [str(node.source.line) for node in again.graph] == [str(node.source.line) for node in traced.graph]
    first, second = traced.report().totals, again.report().totals
    for name in ("launches", "memcpys", "tensor_bytes", "flops"):
        assert first[name].value == second[name].value, name


def test_nothing_of_a_graph_that_is_priced_is_changed() -> None:
    w, x = nn.Parameter(torch.ones(3)), torch.ones(3)

    def step(x: Tensor) -> Tensor:
        x.add_(1)
        with torch.no_grad():
            w.mul_(2)
        return x * w

    graph = make_fx(step)(x.clone())
    before = {name: tensor.clone() for name, tensor in graph.state_dict().items()}
    optrace.from_fx(graph, x, mode="cpu", device="cpu")
    assert torch.equal(x, torch.ones(3))
    assert all(torch.equal(graph.state_dict()[name], tensor) for name, tensor in before.items())


def test_tensors_made_on_the_cpu_by_a_captured_graph_move_with_it() -> None:
    def made(x: Tensor) -> Tensor:
        return x + torch.zeros(4) + torch.arange(4)

    trace = optrace.from_fx(make_fx(made)(torch.ones(4)))
    assert {t.device for node in trace.graph for t in (*node.inputs, *node.outputs)} == {"cuda:0"}


def test_what_is_no_graph_and_what_lacks_inputs() -> None:
    with pytest.raises(FxError, match=r"takes a torch.fx.GraphModule or an ExportedProgram, not Linear"):
        optrace.from_fx(nn.Linear(2, 2))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(
        FxError, match=r"placeholder input_1 has no meta\['val'\]: give from_fx the graph's inputs"
    ):
        optrace.from_fx(torch.fx.symbolic_trace(nn.Linear(2, 2)))


@pytest.mark.parametrize(
    ("capture", "takes"),
    [
        (lambda model, x: torch.fx.symbolic_trace(model), "1 input"),
        (lambda model, x: make_fx(model)(x), "1 input"),
        (lambda model, x: torch.export.export(model, (x,)), "1 input"),
        (lambda model, x: make_fx(lambda a, b: a + b)(x, x), "2 inputs"),
    ],
)
def test_as_many_inputs_as_the_graph_takes(capture: Any, takes: str) -> None:
    x = torch.randn(8, 64)
    graph = capture(Block(), x)
    with pytest.raises(FxError, match=rf"the graph takes {takes} \(.*\), and 3 were given"):
        optrace.from_fx(graph, x, x, x)


def test_options_are_those_of_trace_and_no_other() -> None:
    graph = torch.fx.symbolic_trace(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="unexpected keyword argument 'gpus'"):
        optrace.from_fx(graph, torch.ones(1, 2), gpus="h100")  # type: ignore[call-arg]  # what is tested
    with pytest.raises(ValueError, match="no GPU profile fits 'x999'"):
        optrace.backend("eager", gpu="x999")
    assert set(TraceOptions.__annotations__) == set(inspect.signature(optrace.trace).parameters) - {
        "keep_values"
    }
    assert optrace.from_fx(graph, torch.ones(1, 2), launch_us=99).report().pricing.host.launch_us == 99


def test_a_symbolic_trace_calls_modules() -> None:
    trace = optrace.from_fx(torch.fx.symbolic_trace(Block()), torch.randn(8, 64))
    assert ops(trace) == CALLS


def test_on_a_gpu_values_that_were_read_are_those_of_the_capture() -> None:
    """There the graph runs on fake tensors: here the same way with a session that says that it is on a GPU."""
    x = torch.ones(3)
    with optrace.trace(mode="cpu", device="cpu", keep_values=True) as traced:
        x * x.sum().item()
    with open_session("cpu", device="cpu") as session:
        session.mode = "cuda"
        run_captured(session, traced.to_fx())
    assert [node.op for node in session.graph] == [node.op for node in traced.graph]
    assert session.graph[1].out == 3.0


# -- the backend ----------------------------------------------------------------------------------------------


def broken(model: nn.Module) -> Any:
    def call(x: Tensor) -> Tensor:
        y = model(x)
        torch._dynamo.graph_break()
        return model(y) * 2

    return call


def test_each_captured_graph_is_priced_and_breaks_are_said_beside_the_eager_trace() -> None:
    model, x = Block(), torch.randn(8, 64)
    call = broken(model)
    backend = optrace.backend("eager", gpu="h100")
    compiled = torch.compile(call, backend=backend)
    with torch.no_grad():
        assert torch.equal(compiled(x), call(x))
        with optrace.trace(gpu="h100") as eager:
            with torch.device("cuda"):
                model.to("cuda")
                x = torch.randn(8, 64)
            with optrace.step():
                compiled(x)
    assert [ops(capture.trace) for capture in backend.captures] == [CALLS, [*CALLS, "aten.mul.Tensor"]]
    assert ops(eager) == [*CALLS, *CALLS, "aten.mul.Tensor"]
    assert [bool(capture.ended) for capture in backend.captures] == [True, False]
    table = backend.beside(eager)
    rows = {line.split("  ")[0]: line.split() for line in table.splitlines()}
    assert rows["captured"][1:3] == rows["eager"][1:3] == ["13", "9"], table
    (line,) = [line for line in table.splitlines() if "breaks at" in line]
    assert line.startswith("graph 0 breaks at")
    assert "test_captured.py:" in line


def test_nothing_captured_and_code_that_is_compiled_again() -> None:
    backend = optrace.backend("eager")
    assert "no graph was captured yet" in str(backend)
    compiled = torch.compile(lambda x: x.sin(), backend=backend)
    compiled(torch.ones(3))
    compiled(torch.ones(3, 2))
    assert len(backend.captures) == 2
    assert "graph 1 is the code of graph 0 compiled again; the sum has both" in str(backend)
    assert "no graph breaks" in str(backend)


def test_a_branch_on_a_value_is_said_in_plain_words() -> None:
    def branch(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x

    backend = optrace.backend("eager")
    torch.compile(branch, backend=backend)(torch.ones(3))
    assert "a branch depends on a tensor's value" in str(backend)


def test_a_dynamic_graph_is_priced_at_the_size_that_it_was_captured_with() -> None:
    backend = optrace.backend("eager")
    compiled = torch.compile(Block(), backend=backend, dynamic=True)
    compiled(torch.randn(8, 64))
    (capture,) = backend.captures
    assert capture.report.totals["matmul_flops"].value == 2 * (2 * 8 * 64 * 128)


def test_inductor_gets_the_graph_and_its_price_is_eagers() -> None:
    model, x = Block(), torch.randn(8, 64)
    backend = optrace.backend("inductor")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Inductor's own imports warn
        out = torch.compile(model, backend=backend)(x)
    assert torch.allclose(out, model(x), atol=1e-5)
    assert ops(backend.captures[0].trace) == CALLS
    assert "no graph breaks" in str(backend)
