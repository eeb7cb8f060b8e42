"""Small programs on the CPU, seen by torch's own observers and by optrace: the same calls, in the same order."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from optrace.graph import OpGraph
from optrace.tracing import open_session
from optrace.tracing.imports import TraceFileError, is_foreign, read_trace

Step = Callable[[], object]


def pointwise() -> Step:
    a, b = torch.ones(8, 4), torch.ones(4)

    def step() -> object:
        x = (a * 2 + b).relu()
        x[2:].mul_(b)
        return torch.cat([x.sum(0), x.mean(1)]).clamp(max=3.0)

    return step


def attention() -> Step:
    norm, qkv, proj = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
    x = torch.randn(2, 5, 16)

    def step() -> object:
        with torch.no_grad():
            q, k, v = qkv(norm(x)).view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + nn.functional.gelu(proj(y.transpose(1, 2).reshape(2, 5, 16)))

    return step


def training() -> Step:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])

    def step() -> object:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def profiled(step: Step, folder: Path, **options: Any) -> bytes:
    file = folder / "kineto.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler's own
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, **options) as run:
            step()
        run.export_chrome_trace(str(file))
    return file.read_bytes()


def observed(step: Step, folder: Path) -> bytes:
    file = folder / "execution.json"
    observer = ExecutionTraceObserver().register_callback(str(file))
    observer.start()
    step()
    observer.stop()
    observer.unregister_callback()
    return file.read_bytes()


def recorded(step: Step) -> OpGraph:
    with open_session("cpu", device="cpu") as session, session.recording():
        step()
    return session.graph


def shapes(graph: OpGraph) -> list[tuple[str, list[tuple[int, ...]], list[tuple[int, ...]]]]:
    """Ops with what they take and give. Observers see a Python number as a tensor without dimensions. While a dispatch mode is at work, and no profiler, autograd detaches the outputs
    that it saves: not compared."""
    return [
        (
            node.op,
            [tensor.shape for tensor in node.inputs if tensor.shape],
            [tensor.shape for tensor in node.outputs],
        )
        for node in graph
        if node.op != "aten.detach.default"
    ]


@pytest.mark.parametrize("program", [pointwise, attention, training])
def test_an_execution_trace_is_what_optrace_records(program: Callable[[], Step], tmp_path: Path) -> None:
    step = program()
    step()
    ours, read = recorded(step), read_trace(observed(step, tmp_path)).graph
    assert shapes(read) == shapes(ours)
    assert read.info.incomplete == ()
    if program is not training:  # there detached tensors lie between
        mine = {(edge.src, edge.dst, edge.kind) for edge in ours.edges}
        assert {(edge.src, edge.dst, edge.kind) for edge in read.edges} == mine


@pytest.mark.parametrize("program", [pointwise, attention, training])
def test_a_profilers_trace_is_what_optrace_records(program: Callable[[], Step], tmp_path: Path) -> None:
    """Overloads, plain arguments and results are not in it: found by arguments, and worked out."""
    step = program()
    step()
    ours, read = recorded(step), read_trace(profiled(step, tmp_path)).graph
    assert shapes(read) == shapes(ours)
    assert "guessed by its layout" in read.info.incomplete[0]
    kept = [[n for n in graph if n.op != "aten.detach.default"] for graph in (read, ours)]
    assert [n.is_view for n in kept[0]] == [n.is_view for n in kept[1]]
    assert [n.phase for n in kept[0]] == [n.phase for n in kept[1]]


def test_stacks_give_modules_and_lines(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.ones(3, 4)
    graph = read_trace(profiled(lambda: model(x), tmp_path, with_stack=True)).graph
    modules = [(node.op, node.module.path, node.module.cls) for node in graph if node.module]
    assert ("aten.relu.default", "Sequential_0.ReLU_0", "ReLU") in modules
    linears = [path for op, path, _ in modules if op == "aten.addmm.default"]
    assert linears == ["Sequential_0.Linear_0", "Sequential_0.Linear_1"]
    lines = {str(node.source.line).rpartition("/")[2] for node in graph}
    assert all(line.startswith("test_against_the_recorder.py:") for line in lines)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1, 2]", "not a JSON object"),
        (b"\x1f\x8b broken", "not a JSON object"),
        (b'{"a": 1}', "neither a profiler's trace"),
        (b'{"traceEvents": []}', "it holds no op: profile with ProfilerActivity.CPU"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}',
            "it holds no shapes: profile with record_shapes=True",
        ),
        (b'{"traceEvents": [], "optrace": {"program": "x"}}', "a timeline that optrace wrote"),
        (b'{"traceEvents": 3}', "inconsistent"),
        (b'{"schema": "1.1", "nodes": []}', "it holds no op"),
        (b'{"schema": "1.1", "nodes": [{"id": 1}]}', "inconsistent"),
    ],
)
def test_what_is_no_trace(data: bytes, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        read_trace(data)


def test_our_own_files_are_no_foreign_trace() -> None:
    assert not is_foreign(json.dumps({"format": "optrace.graph", "nodes": [], "schema": 1}).encode())
    assert is_foreign(b'{"traceEvents": []}')
    assert is_foreign(b'{"schema": "1", "nodes": []}')
