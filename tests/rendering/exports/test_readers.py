"""Exports opened by the programs that they are for. These are an extra: pip install 'torch-optrace[readers]'."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import optrace
from optrace.rendering import render
from optrace.rendering.exports.columns import COLUMNS
from optrace.report import Report
from tests.rendering.by_hand import HandGraph


def test_parquet_in_pyarrow(toy: HandGraph, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is an extra")
    report = toy.report()
    render(report, tmp_path / "toy.parquet")
    table = parquet.read_table(tmp_path / "toy.parquet")
    assert table.column_names == [column.name for column in COLUMNS]
    assert table["launches"].to_pylist() == [0, 1, 1, 1, None, 1, 1, 1]
    assert table["predicted_device_us"].to_pylist() == [0.0, 12.0, 2.0, 2.0, None, 1.0, 1.5, 1.5]
    assert table["measured_device_us"].null_count == len(table)
    assert str(table.schema.field("hbm_read").type) == "int64"
    assert table.schema.metadata[b"gpu"] == b"h200"


def test_parquet_and_csv_in_pandas(toy: HandGraph, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is an extra")
    pytest.importorskip("pyarrow", reason="pyarrow is an extra")
    report = toy.report()
    render(report, tmp_path / "toy.parquet")
    render(report, tmp_path / "toy.csv")
    table = pandas.read_parquet(tmp_path / "toy.parquet")
    assert table.groupby("phase")["predicted_device_us"].sum().to_dict() == {
        "forward": 17.0,
        "optimizer": 3.0,
    }
    read = pandas.read_csv(tmp_path / "toy.csv")
    assert list(read["op"]) == list(table["op"])
    assert read["predicted_wall_us"].sum() == pytest.approx(table["predicted_wall_us"].sum())


def in_holistic_trace_analysis(report: Report, folder: Path) -> Any:
    """The timeline of a report, opened there."""
    analysis = pytest.importorskip(
        "hta.trace_analysis", reason="HolisticTraceAnalysis is an extra", exc_type=ImportError
    )
    file = folder / "step.trace.json"
    render(report, file)
    return analysis.TraceAnalysis(trace_files={0: str(file)}, trace_dir=str(folder))


def test_the_timeline_in_holistic_trace_analysis(toy: HandGraph, tmp_path: Path) -> None:
    """It counts in whole microseconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, at import and about pandas
        report = toy.report()
        opened = in_holistic_trace_analysis(report, tmp_path)
        breakdown = opened.get_temporal_breakdown(visualize=False).iloc[0]
        kinds, kernels = opened.get_gpu_kernel_breakdown(visualize=False)
        launches = opened.get_cuda_kernel_launch_stats(visualize=False)[0]
        idle, _ = opened.get_idle_time_breakdown(visualize=False)
    assert dict(zip(kinds["kernel_type"], kinds["sum"], strict=True)) == {"COMPUTATION": 18, "MEMORY": 1}
    by_name = dict(zip(kernels["name"], kernels["sum (us)"], strict=True))
    assert by_name["mm [thin_rows]"] == 12
    assert len(launches) == 6
    busy = breakdown["compute_time(us)"] + breakdown["non_compute_time(us)"]
    assert busy == pytest.approx(12 + 2 + 2 + 1 + 1.5 + 1.5, abs=2)
    first = min(span.start_us for span in report.timeline.spans if span.busy_us)
    last = max(span.end_us for span in report.timeline.spans)
    assert breakdown["idle_time(us)"] == pytest.approx(last - first - 20, abs=3)
    assert set(idle["idle_category"]) <= {"host_wait", "kernel_wait", "other"}


def test_launches_of_less_than_a_microsecond_in_holistic_trace_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default it rounds a launch inwards to whole microseconds, which ends a short one before its start; in torch's
    own traces too. Without that each call has its time."""
    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    with optrace.trace(mode="fake") as trace:
        x, w = trace.place((torch.ones(16384, 1024).bfloat16(), torch.ones(3072, 1024).bfloat16()))
        with optrace.step():
            torch.nn.functional.gelu(torch.nn.functional.linear(x, w, w[:, 0].contiguous()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, at import and about pandas
        report = trace.report()
        opened = in_holistic_trace_analysis(report, tmp_path)
        breakdown = opened.get_temporal_breakdown(visualize=False).iloc[0]
        _, kernels = opened.get_gpu_kernel_breakdown(visualize=False)
    by_name = dict(zip(kernels["name"], kernels["sum (us)"], strict=True))
    costs = {report.graph.facts(call).label: cost.device_us for call, cost in enumerate(report.costs)}
    fill = by_name["Memset (Device) addmm"]
    assert fill < 1
    assert by_name["addmm [warp_specialized]"] + fill == pytest.approx(costs["addmm"], abs=0.002)
    assert by_name["gelu [heavy]"] == pytest.approx(costs["gelu"], abs=0.002)
    busy = breakdown["compute_time(us)"] + breakdown["non_compute_time(us)"]
    assert busy == pytest.approx(report.totals["device_us"].value, abs=0.01)


def test_the_graph_in_model_explorer(toy: HandGraph, tmp_path: Path) -> None:
    """Its own types take the file, and its server hands it out."""
    dacite = pytest.importorskip("dacite", reason="ai-edge-model-explorer is an extra")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own, at import
        builder = pytest.importorskip(
            "model_explorer.graph_builder", reason="ai-edge-model-explorer is an extra"
        )
        data: Any = pytest.importorskip("model_explorer.node_data_builder")
    report = toy.report()
    render(report, tmp_path / "toy.explorer.json")
    render(report, tmp_path / "toy.nodedata.json")
    strict = dacite.Config(strict=True)
    collection = json.loads((tmp_path / "toy.explorer.json").read_text())
    read = dacite.from_dict(builder.GraphCollection, collection, strict)
    nodes = {node.id: node for node in read.graphs[0].nodes}
    assert len(nodes) == len(report.graph)
    for node in nodes.values():
        assert all(edge.sourceNodeId in nodes for edge in node.incomingEdges)
    [(graph, values)] = json.loads((tmp_path / "toy.nodedata.json").read_text()).items()
    assert graph == read.graphs[0].id
    assert set(dacite.from_dict(data.GraphNodeData, values, strict).results) == set(nodes)
