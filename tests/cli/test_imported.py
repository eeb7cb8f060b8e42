"""``optrace trace.json``: another tool's trace in place of a program."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest


def add(start: float, number: int, **more: Any) -> list[dict[str, Any]]:
    """One call of ``aten::add`` on [1024, 1024] floats at ``start``, its launch and its kernel of 8 us."""
    shape, stride = [1024, 1024], [1024, 1]
    host = {"ph": "X", "pid": 9, "tid": 9}
    args = {
        "External id": number,
        "Input Dims": [shape, shape, []],
        "Input Strides": [stride, stride, []],
        "Input type": ["float", "float", "Scalar"],
        "Concrete Inputs": ["", "", "1"],
    }
    return [
        {**host, "cat": "cpu_op", "name": "aten::add", "ts": start, "dur": 10, "args": args},
        {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5, "dur": 4, "args": {"correlation": number}},
        {"ph": "X", "cat": "kernel", "name": "vectorized_add", "pid": 0, "tid": 7, "ts": start + 12, "dur": 8,
         "args": {"External id": number, "correlation": number, "stream": 7, "device": 0}},
    ]  # fmt: skip


@pytest.fixture
def trace(folder: Path) -> Path:
    """Two adds on an H100, and a kernel that no op launched."""
    stray = {"ph": "X", "cat": "kernel", "name": "stray", "pid": 0, "tid": 7, "ts": 140, "dur": 1, "args": {}}
    events = [*add(100, 1), *add(120, 2), stray]
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    file = folder / "kineto.json"
    file.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": device, "traceEvents": events}))
    return file


def test_measured_times_stand_beside_the_prediction(optrace, trace: Path) -> None:
    ran = optrace(
        "kineto.json", "-o", "graph.json", "-o", "graph.trace.json", "-o", "graph.csv", "-o", "graph.dot"
    )
    assert ran.code == 0, ran.err
    assert ran.out.startswith(
        "kineto.json: profiler, 2 calls on NVIDIA H100 80GB HBM3\npriced for NVIDIA H100"
    )
    lines = {
        line.split("  ")[0].strip(): line.split()
        for line in ran.out.partition("by the profiler")[2].splitlines()
    }
    # from the first call at 100 to the end of the last kernel at 141; two kernels of 8 us and the stray one
    assert lines["wall clock"][4:6] == ["41", "us"]
    assert lines["device time"][4:6] == ["17", "us"]
    assert lines["launches"][1:3] == ["2", "2"]
    assert lines["aten.add.Tensor"][:3] == ["aten.add.Tensor", "2", "2"]
    assert lines["aten.add.Tensor"][5:7] == ["16", "us"]
    assert "1 us of the device time belong to no ATen call" in ran.out
    assert "a profiler's trace names no tensors" in ran.err
    bars = [
        e for e in json.loads(Path("graph.trace.json").read_text())["traceEvents"] if e.get("cat") == "kernel"
    ]
    assert [(bar["name"], bar["ts"], bar["dur"]) for bar in bars] == [
        ("vectorized_add", 12, 8),
        ("vectorized_add", 32, 8),
    ]
    assert Path("graph.csv").read_text().splitlines()[1].endswith(",8.0")
    assert "measured 8 us" in Path("graph.dot").read_text()
    nodes = json.loads(Path("graph.json").read_text())["nodes"]
    assert [node["launches"] for node in nodes] == [1, 1]
    assert nodes[0]["hbm_written"] + nodes[0]["hbm_read"] <= 3 * 4 * 1024 * 1024


def test_a_packed_trace_and_another_gpu(optrace, trace: Path) -> None:
    Path("kineto.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    ran = optrace("kineto.json.gz", "--gpu", "l4", "--top", "0")
    assert ran.code == 0
    assert "priced for NVIDIA L4" in ran.out
    assert "longest first" not in ran.out


@pytest.mark.parametrize(
    ("name", "text", "options", "said"),
    [
        ("t.json", '{"traceEvents": []}', [], "cannot read t.json: it holds no op: profile with ProfilerActivity.CPU"),
        ("t.json.gz", "text", [], "cannot read t.json.gz: not a JSON object"),
        ("t.json", '{"traceEvents": []}', ["--train"], "--train is about running a program, and t.json is a recorded graph"),
        ("t.json", "{}", [], "cannot read t.json: no optrace graph"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(
    optrace, folder: Path, name: str, text: str, options: list[str], said: str
) -> None:
    (folder / name).write_text(text)
    ran = optrace(name, *options, "-o", "graph.svg")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"optrace: {said}")
    assert not Path("graph.svg").exists()


def test_a_run_of_the_cpu_alone_has_no_finding_about_the_gpu(optrace, trace: Path) -> None:
    document = json.loads(trace.read_text())
    shape = {
        "Input Dims": [[512, 512], [512, 512]],
        "Input Strides": [[512, 1]] * 2,
        "Input type": ["float"] * 2,
    }
    product = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 0, "dur": 5}
    document |= {
        "deviceProperties": [],
        "traceEvents": [product | {"args": shape | {"Concrete Inputs": ["", ""]}}],
    }
    trace.write_text(json.dumps(document))
    ran = optrace("kineto.json", "--findings")
    assert ran.code == 0, ran.err
    assert "the trace holds no GPU" in ran.out


def test_an_op_without_a_price_is_no_error_of_100_percent(optrace, folder: Path) -> None:
    events = [
        {**event, "name": event["name"].replace("aten::add", "mine::thing")}
        for event in [*add(100, 1), *add(120, 2)]
    ]
    device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    (folder / "own.json").write_text(json.dumps({"deviceProperties": device, "traceEvents": events}))
    ran = optrace("own.json")
    assert ran.code == 0, ran.err
    told = ran.out.partition("by the profiler")[2].splitlines()
    (row,) = (line for line in told if line.startswith("mine.thing"))
    assert "?" in row
    assert "%" not in row
    (device_time,) = (line for line in told if line.startswith("device time"))
    assert "?" in device_time
    assert "%" not in device_time
