"""Small programs on the CPU, seen by torch's own observers and by optrace: the same calls, in the same order."""

from __future__ import annotations

import gzip
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from optrace.graph import OpGraph, foreign
from optrace.graph.foreign import cpp_dtype, writer_of
from optrace.tracing import open_session
from optrace.tracing.imports import TraceFileError, read_trace

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


# ``mtime``: processes that share the tests name them alike.
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[1, 2]", "not a JSON object"),
        (b"\x1f\x8b broken", "not a whole gzip file"),
        (b'{"a": 1}', "neither a profiler's trace"),
        (b'{"traceEvents": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not a JSON object"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-4], "not a whole gzip file"),
        (b'{"traceEvents": []}', "it holds no op: profile with ProfilerActivity.CPU"),
        (
            b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 1, "pid": 1, "tid": 1}]}',
            "it holds no shapes: profile with record_shapes=True",
        ),
        (b'{"traceEvents": [], "optrace": {"program": "x"}}', "a timeline that optrace wrote"),
        (b'{"traceEvents": 3}', "inconsistent"),
        (b'{"schema": "1.1", "nodes": []}', "it holds no op"),
        (b'{"schema": "1.1", "nodes": [{"id": 1}]}', "inconsistent"),
        (
            b'{"schema": "1.1", "nodes": [{"id": "q", "name": "", "inputs": {}, "outputs": {}}]}',
            "inconsistent: ValueError",
        ),
        (
            gzip.compress(b'{"format": "optrace.graph", "nodes": []}', mtime=0),
            "a graph.json of optrace, packed: unpack it first",
        ),
    ],
)
def test_what_is_no_trace(data: bytes, message: str) -> None:
    with pytest.raises(TraceFileError, match=message):
        read_trace(data)


@pytest.mark.parametrize(
    ("shape", "stride", "said"),
    [
        ([-1, 3], [3, 1], r"a tensor of shape \[-1, 3\], strides \[3, 1\]"),
        ([2, 3], [3, -1], r"strides \[3, -1\]"),
        (["x"], [1], r"a tensor of shape \['x'\]"),
        ([1 << 40, 1 << 40], [1 << 40, 1], "larger than any memory"),
        ([2, 2], [1 << 60, 1], "larger than any memory"),
        ("xy", [1], "inconsistent|a tensor of shape"),
    ],
)
def test_a_tensor_that_there_cannot_be(shape: object, stride: object, said: str) -> None:
    call, kernel = _call(0, 1, 0, 7)
    call["args"] |= {"Input Dims": [shape], "Input Strides": [stride]}  # type: ignore[operator]  # a dict
    with pytest.raises(TraceFileError, match=said):
        read_trace(_profile(call, kernel))


def test_a_packed_file_that_would_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LARGEST_BYTES", 1 << 20)
    assert len(foreign.unpacked(gzip.compress(b" " * (1 << 20)))) == 1 << 20
    with pytest.raises(TraceFileError, match="a gzip file of more than"):
        read_trace(gzip.compress(b" " * ((1 << 20) + 1)))


def test_files_are_told_apart_by_their_outer_fields() -> None:
    assert (
        writer_of(json.dumps({"format": "optrace.graph", "nodes": [], "schema": 1}).encode())
        == "optrace graph"
    )
    assert writer_of(b'{"a": 1}') is None
    assert writer_of(b'{"traceEvents": []}') == "profiler"
    assert writer_of(b'{"schema": "1", "nodes": []}') == "execution trace"
    assert writer_of(b'{"schema": "1"}') is None
    assert writer_of(b'{"traceEvents": [], "optrace": "x"}') == "optrace timeline"


def test_which_torch_made_a_trace_is_not_in_it(tmp_path: Path) -> None:
    step = pointwise()
    for data in (profiled(step, tmp_path), observed(step, tmp_path)):
        assert read_trace(data).graph.info.torch == ""


DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32",
          "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e5m2fnuz", "float8_e8m0fnu")  # fmt: skip


def test_types_are_named_as_the_profiler_names_them(tmp_path: Path) -> None:
    tensors = [torch.empty(2, dtype=getattr(torch, name)) for name in DTYPES if hasattr(torch, name)]
    data = profiled(lambda: [x.view(2, 1) for x in tensors], tmp_path)
    said = [
        event["args"]["Input type"][0]
        for event in json.loads(data)["traceEvents"]
        if event.get("name") == "aten::view"
    ]
    assert said == [cpp_dtype(str(x.dtype).removeprefix("torch.")) for x in tensors]
    graph = read_trace(data).graph
    assert [f"torch.{node.inputs[0].dtype}" for node in graph] == [str(x.dtype) for x in tensors]


def test_a_block_that_was_given_out_again_is_another_storage(tmp_path: Path) -> None:
    """An execution trace has addresses for storages. What a call makes is new, whatever lay there before."""
    nodes = [
        _node(2, "aten::mul", [_at(10, 1), 2.0], [_at(20, 5)]),
        _node(3, "aten::sum", [_at(20, 5)], [_at(21, 6)]),
        _node(4, "aten::mul", [_at(10, 1), 3.0], [_at(22, 5)]),  # the first product was freed
        _node(5, "aten::relu_", [_at(22, 5)], [_at(22, 5)]),
        _node(6, "aten::sum", [_at(22, 5)], [_at(23, 7)]),
    ]
    graph = read_trace(json.dumps({"schema": "1.1.1", "nodes": nodes}).encode()).graph
    first, _, second, changed, total = graph
    assert first.outputs[0].storage != second.outputs[0].storage
    assert changed.inputs[0].storage == second.outputs[0].storage == total.inputs[0].storage
    assert first.inputs[0].storage == second.inputs[0].storage
    assert {(edge.src, edge.dst) for edge in graph.edges} == {(0, 1), (2, 3), (3, 4)}
    # each product is gone after its last use
    assert first.outputs[0].storage in graph.freed_after(1)
    assert second.outputs[0].storage in graph.freed_after(4)


def test_what_no_call_of_an_execution_trace_leads_to_is_said() -> None:
    nodes = [
        _node(2, "aten::mul", [_at(10, 1), 2.0], [_at(20, 5)]),
        _node(3, "aten::sum", [_at(20, 5)], [_at(21, 6)]) | {"ctrl_deps": 9},
        _node(4, "aten::mul", [_at(10, 1), 3.0], [_at(22, 7)]) | {"ctrl_deps": 6},
        _node(5, "aten::mul", [_at(10, 1), 3.0], [_at(23, 8)]) | {"ctrl_deps": 4},
        _node(6, "aten::sum", [_at(22, 7)], [_at(24, 9)]) | {"ctrl_deps": 4},
    ]
    graph = read_trace(json.dumps({"schema": "1.1.1", "nodes": nodes}).encode()).graph
    assert [node.op for node in graph] == ["aten.mul.Scalar", "aten.sum.default"]
    assert graph.info.incomplete == (
        "1 node of the trace was made in a call that it does not hold, and stands by itself",
        "3 nodes of the trace are left out, whose parents lead in a circle: aten::mul x2, aten::sum x1",
    )


def _at(tensor: int, storage: int) -> list[object]:
    """A [4, 4] float tensor of a GPU, as schema 1.1 has it."""
    return [tensor, storage, 0, 16, 4, "cuda:0"]


def _node(number: int, name: str, inputs: list[object], outputs: list[object]) -> dict[str, object]:
    def side(values: list[object]) -> dict[str, object]:
        kinds = ["Tensor(float)" if isinstance(value, list) else "Double" for value in values]
        return {
            "values": values,
            "shapes": [[4, 4] if isinstance(value, list) else [] for value in values],
            "types": kinds,
            "strides": [[4, 1] if isinstance(value, list) else [] for value in values],
        }

    schemas = {
        "aten::mul": "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor",
        "aten::sum": "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor",
        "aten::relu_": "aten::relu_(Tensor(a!) self) -> Tensor(a!)",
    }
    attributes = [{"name": "op_schema", "value": schemas[name]}]
    return {
        "id": number, "name": name, "ctrl_deps": 1, "inputs": side(inputs), "outputs": side(outputs), "attrs": attributes,
    }  # fmt: skip


def _profile(*events: dict[str, object]) -> bytes:
    return json.dumps({"traceEvents": events, "deviceProperties": [{"name": "NVIDIA H200"}]}).encode()


def _call(start: float, number: int, device: int, stream: int) -> tuple[dict[str, object], ...]:
    args = {
        "External id": number, "Input Dims": [[4]], "Input Strides": [[1]], "Input type": ["float"], "Concrete Inputs": [""],
    }  # fmt: skip
    return (
        {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 9, "tid": 9, "ts": start, "dur": 5, "args": args},
        {"ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": stream, "ts": start + 9, "dur": 3,
         "args": {"External id": number, "device": device, "stream": stream}},
    )  # fmt: skip


def test_streams_of_two_gpus_stay_apart() -> None:
    graph = read_trace(_profile(*_call(0, 1, 0, 7), *_call(20, 2, 1, 7), *_call(40, 3, 0, 7))).graph
    assert [node.stream for node in graph] == [0, 1, 0]


def test_steps_of_the_profiler_are_steps_of_the_graph() -> None:
    def step(number: int, start: float) -> dict[str, object]:
        return {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{number}",
            "pid": 9,
            "tid": 9,
            "ts": start,
            "dur": 19,
        }

    graph = read_trace(
        _profile(step(5, 0), *_call(1, 1, 0, 7), step(6, 20), *_call(21, 2, 0, 7), *_call(30, 3, 0, 7))
    ).graph
    assert graph.info.steps == 2
    assert [(mark.kind, mark.call) for mark in graph.marks] == [("step", 0), ("step", 1)]


def test_what_a_copy_moved_is_taken_from_the_trace() -> None:
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, "tid": 7, "ts": 15, "dur": 2,
            "args": {"External id": 1, "device": 0, "stream": 7, "bytes": 16}}  # fmt: skip
    measured = read_trace(_profile(*_call(0, 1, 0, 7), copy)).measured
    assert measured is not None
    assert [launch.nbytes for launch in measured.launches] == [None, 16]
