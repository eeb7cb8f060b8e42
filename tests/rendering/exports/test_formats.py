"""What other tools are handed, read back by those of their readers that come with optrace."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch

import optrace
from optrace.cost.profiles import pricing
from optrace.program import Options, find_program
from optrace.rendering import Validation, render, render_bytes
from optrace.rendering.exports.columns import COLUMNS
from optrace.rendering.exports.model_explorer import GRAPH
from optrace.rendering.formats import suffix_of
from optrace.rendering.palette import PAINT
from optrace.report import Report
from optrace.report import report as make_report
from optrace.tracing import open_session
from tests.rendering.by_hand import HandGraph


def events(data: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(data)["traceEvents"]
    return found


def slices(found: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == "X" and event["cat"] == category]


def traced(run: Callable[[torch.Tensor], object]) -> Report:
    """Of a function on an [8, 64] float tensor of a stand-in H200."""
    with optrace.trace(mode="fake") as trace:
        x = trace.place(torch.ones(8, 64))
        with optrace.step():
            run(x)
    return trace.report()


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("graph.json", ".json"),
        ("run.trace.json", ".trace.json"),
        ("RUN.Perfetto.JSON", ".perfetto.json"),
        ("a.b.svg", ".svg"),
        ("trace.json", ".json"),  # a name, not a suffix
        (".trace.json", ".json"),
        ("graph.gif", ".gif"),
        ("graph", ""),
    ],
)
def test_the_longest_suffix_says_the_format(name: str, suffix: str) -> None:
    assert suffix_of(name) == suffix


@pytest.mark.parametrize(
    ("format", "golden_name"),
    [("trace.json", "toy.trace.json"), ("csv", "toy.csv"), ("graphml", "toy.graphml")],
)
def test_golden(format: str, golden_name: str, toy: HandGraph, golden: Callable[[str, str], None]) -> None:
    golden(golden_name, render_bytes(toy.report(), format).decode())


def test_a_format_may_be_named_in_place_of_the_suffix(toy: HandGraph, tmp_path: Any) -> None:
    file = tmp_path / "out.data"
    render(toy.report(), file, format="csv")
    assert file.read_bytes() == render_bytes(toy.report(), "csv")


def test_host_slices_nest_and_follow_the_timeline(toy: HandGraph) -> None:
    report = toy.report()
    found = events(render_bytes(report, "trace.json"))
    calls = slices(found, "cpu_op")
    assert [event["name"] for event in calls[:2]] == ["aten::t", "aten::mm"]
    for call, span in zip(calls, report.timeline.spans, strict=True):
        assert call["ts"] + call["dur"] == pytest.approx(span.host_end_us, abs=0.002)
    around = {event["name"]: event for event in slices(found, "user_annotation")}
    assert set(around) == {"ProfilerStep#0", "forward", "optimizer", "Block", "fc (Linear)"}
    first, second = calls[0], calls[1]
    assert around["fc (Linear)"]["ts"] == first["ts"]
    assert around["fc (Linear)"]["ts"] + around["fc (Linear)"]["dur"] == pytest.approx(
        second["ts"] + second["dur"], abs=0.002
    )
    assert around["Block"]["ts"] == first["ts"]
    assert around["Block"]["ts"] + around["Block"]["dur"] == pytest.approx(
        calls[3]["ts"] + calls[3]["dur"], abs=0.002
    )
    ends: list[float] = []
    thread = [e for e in found if e["ph"] == "X" and e["pid"] == 1000]
    for event in sorted(thread, key=lambda e: (e["ts"], -e["dur"])):
        while ends and ends[-1] <= event["ts"] + 0.002:
            ends.pop()
        end = event["ts"] + event["dur"]
        assert not ends or end <= ends[-1] + 0.002, event
        ends.append(end)


def test_each_launch_has_its_driver_call_and_an_arrow(toy: HandGraph) -> None:
    report = toy.report()
    found = events(render_bytes(report, "trace.json"))
    on_device = [e for e in found if e["ph"] == "X" and e["pid"] == 0]
    assert len(on_device) == 5 + 1  # mm, gelu, add, two mul_; one copy for .item()
    assert sum(e["dur"] for e in on_device) == pytest.approx(12 + 2 + 2 + 1 + 1.5 + 1.5)
    runtime = slices(found, "cuda_runtime")
    assert [e["name"] for e in runtime].count("cudaLaunchKernel") == 5
    assert [e["name"] for e in runtime].count("cudaStreamSynchronize") == 1
    for launch in on_device:
        number = launch["args"]["correlation"]
        issued = next(e for e in runtime if e["args"].get("correlation") == number)
        arrow = {e["ph"]: e["ts"] for e in found if e.get("cat") == "ac2g" and e["id"] == number}
        assert arrow == {"s": issued["ts"], "f": launch["ts"]}
        assert issued["ts"] + issued["dur"] <= launch["ts"] + 0.002
    last = max(e["ts"] + e["dur"] for e in on_device)
    assert last <= report.timeline.wall_us + 0.002


def test_a_copy_says_the_bytes_that_it_moves_and_no_copy_says_those_of_its_call() -> None:
    """As profilers count them: once, not read and written."""
    hand = HandGraph()
    x, y, z = (hand.tensor((8, 64)) for _ in "xyz")
    hand.call("vendor.copy.default", [x], [y], kernels=0, memcpys=1, device_us=2.0)
    hand.call("vendor.fetch.default", [x], [], kernels=0, memcpys=1, device_us=4.0, host_wait=True)
    hand.call("vendor.sort.default", [x], [z], kernels=2, memcpys=1, device_us=6.0)
    copied, to_host, beside_kernels = slices(events(render_bytes(hand.report(), "trace.json")), "gpu_memcpy")
    assert copied["args"]["bytes"] == 4 * 8 * 64
    assert to_host["args"]["bytes"] == 4 * 8 * 64
    assert to_host["args"]["memory bandwidth (GB/s)"] == pytest.approx(4 * 8 * 64 / 4 * 1e-3)
    assert "bytes" not in beside_kernels["args"]  # which of its bytes are the copy's is not known


def test_a_copy_among_kernels_says_its_bytes_where_the_rule_says_who_moves_what() -> None:
    report = traced(lambda x: x.t().contiguous().cumsum(0).clone())
    moved = [e["args"].get("bytes") for e in slices(events(render_bytes(report, "trace.json")), "gpu_memcpy")]
    assert moved == [4 * 8 * 64]  # clone: one run of bytes to another


def test_each_launch_is_as_long_as_the_device_model_says() -> None:
    """A product's fill of its workspace is not half of the product."""
    report = traced(lambda x: (x.repeat(128, 8) @ x.repeat(128, 8).t()).bfloat16().softmax(-1))
    bars = [e for e in events(render_bytes(report, "trace.json")) if e["ph"] == "X" and e["pid"] == 0]
    of_call: dict[int, float] = {}
    for bar in bars:
        call = bar["args"]["External id"] - 1
        of_call[call] = of_call.get(call, 0) + bar["dur"]
    for call, cost in enumerate(report.costs):
        assert of_call.get(call, 0) == pytest.approx(cost.device_us, abs=0.002)
    ends: float = 0
    for bar in bars:
        assert bar["ts"] >= ends - 0.002
        ends = bar["ts"] + bar["dur"]


def test_a_fill_before_a_product_is_not_half_of_it() -> None:
    def product(x: torch.Tensor) -> object:
        a, w, bias = (
            x.new_ones(shape, dtype=torch.bfloat16) for shape in ((16384, 1024), (3072, 1024), (3072,))
        )
        return torch.addmm(bias, a, w.t())

    report = traced(product)
    found = events(render_bytes(report, "trace.json"))
    fill, kernel = (e for e in found if e["ph"] == "X" and e["pid"] == 0 and "addmm" in e["name"])
    assert (fill["cat"], kernel["cat"]) == ("gpu_memset", "kernel")
    assert fill["dur"] < 5 < 100 < kernel["dur"]
    assert kernel["ts"] >= fill["ts"] + fill["dur"] - 0.002


def test_arguments_are_written_as_record_shapes_writes_them() -> None:
    """Names of types as C++ has them; beside each tensor the numbers, in the schema's order."""
    report = traced(
        lambda x: torch.cat([x.bfloat16(), x.bfloat16()], 1).sum([0, 1], keepdim=True) + x.long()[0, 0]
    )
    said = {e["name"]: e["args"] for e in slices(events(render_bytes(report, "trace.json")), "cpu_op")}
    cat = said["aten::cat"]
    assert cat["Input type"] == ["TensorList", "Scalar"]
    assert cat["Input Dims"] == [[[8, 64], [8, 64]], []]
    assert cat["Input Strides"] == [[[64, 1], [64, 1]], []]
    assert cat["Concrete Inputs"] == ["", "1"]
    total = said["aten::sum"]
    assert total["Input type"] == ["c10::BFloat16", "ScalarList", "Scalar"]
    assert total["Concrete Inputs"] == ["", "[0, 1]", "True"]
    assert said["aten::add"]["Input type"] == ["c10::BFloat16", "long int"]


@pytest.mark.parametrize(
    "source",
    [
        "import optrace, torch\nx = torch.ones(8, device='cuda')\nfor _ in range(5):\n  with optrace.step():\n    x.mul_(2).add_(1)\n",
        "import torch\nx = torch.ones(8, device='cuda')\ndef step(): x.mul_(2).add_(1)\n",
    ],
    ids=["marked by the program", "run by optrace"],
)
def test_a_step_of_the_profiler_for_each_step(source: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(source)
    with (
        open_session("fake") as session,
        find_program(str(tmp_path / "program.py"), Options(steps=3, warmup=1)) as program,
    ):
        program.run(session)
    report = make_report(session.graph, pricing("h200"))
    found = events(render_bytes(report, "trace.json"))
    steps = [e for e in slices(found, "user_annotation") if e["name"].startswith("ProfilerStep#")]
    assert [step["name"] for step in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    calls = slices(found, "cpu_op")
    assert [call["name"] for call in calls] == ["aten::mul_", "aten::add_"] * 3
    for number, step in enumerate(steps):
        inside = [
            c
            for c in calls
            if step["ts"] <= c["ts"] and c["ts"] + c["dur"] <= step["ts"] + step["dur"] + 0.002
        ]
        assert inside == calls[2 * number : 2 * number + 2]
    assert steps[0]["ts"] == 0
    assert steps[2]["ts"] + steps[2]["dur"] == pytest.approx(report.timeline.wall_us, abs=0.002)


def test_counters_return_to_nothing_and_memory_follows_the_allocator(toy: HandGraph) -> None:
    report = toy.report()
    counted: dict[str, list[float]] = {}
    for event in events(render_bytes(report, "trace.json")):
        if event["ph"] == "C":
            counted.setdefault(event["name"], []).append(*event["args"].values())
    assert counted["launches in flight"][-1] == 0
    assert max(counted["launches in flight"]) >= 1
    assert counted["HBM traffic (predicted bytes)"][-1] == 0
    # mm moves 18432 + 2048 bytes in 12 us: 1.70667 bytes a nanosecond
    assert max(counted["HBM traffic (predicted bytes)"]) == pytest.approx(32768 / 1.5 * 1e-3, abs=0.01)
    assert counted["allocated memory"][0] == report.priced.memory.base
    assert counted["allocated memory"][-1] == report.priced.memory.live_after[-1]


def test_graphml_and_node_link_hold_the_same_graph(toy: HandGraph) -> None:
    report = toy.report()
    graphml = nx.read_graphml(
        io.BytesIO(render_bytes(report, "graphml")), node_type=int, force_multigraph=True
    )
    linked = nx.node_link_graph(json.loads(render_bytes(report, "nodelink.json")), edges="edges")
    ours = report.graph.to_networkx()
    for network in (graphml, linked):
        assert sorted(network.edges()) == sorted(ours.edges())
        assert network.number_of_edges(2, 3) == 2  # y + y
        assert network.nodes[1]["op"] == "aten.mm.default"
        assert network.nodes[1]["matmul_flops"] == 2 * 8 * 64 * 64
        assert network.nodes[1]["predicted_device_us"] == 12.0
        assert "launches" not in network.nodes[4]  # not known is left out
        assert "measured_device_us" not in network.nodes[1]
    assert graphml.graph["gpu"] == "h200"
    assert [dict(data) for _, data in sorted(graphml.nodes(data=True))] == [
        dict(data) for _, data in sorted(linked.nodes(data=True))
    ]


def test_csv_says_what_is_not_known_by_an_empty_field(toy: HandGraph) -> None:
    table = list(csv.DictReader(io.StringIO(render_bytes(toy.report(), "csv").decode())))
    assert list(table[0]) == [column.name for column in COLUMNS]
    assert [row["op"] for row in table][:3] == ["aten.t.default", "aten.mm.default", "aten.gelu.default"]
    assert (table[0]["launches"], table[0]["predicted_device_us"]) == ("0", "0.0")
    assert (table[4]["launches"], table[4]["predicted_device_us"], table[4]["hbm_read"]) == ("", "", "")
    assert table[1]["source"] == "/home/me/toy.py:4"
    assert {row["measured_device_us"] for row in table} == {""}


def test_measured_times_stand_beside_the_predicted_ones(toy: HandGraph, tmp_path: Any) -> None:
    report = toy.report()
    measured = Validation("a GPU", [float(call) for call in range(len(report.graph))], 99.0)
    render(report, tmp_path / "t.csv", measured=measured)
    table = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert [row["measured_device_us"] for row in table][:3] == ["0.0", "1.0", "2.0"]
    render(report, tmp_path / "t.nodedata.json", measured=measured)
    data = json.loads((tmp_path / "t.nodedata.json").read_text())[GRAPH]
    assert data["name"] == "measured device time on a GPU (us)"
    assert data["results"]["3"] == {"value": 3.0}


def test_model_explorer_has_modules_as_layers_and_bounds_as_colours(toy: HandGraph) -> None:
    report = toy.report()
    collection = json.loads(render_bytes(report, "explorer.json"))
    [graph] = collection["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(report.graph)
    assert nodes["1"]["namespace"] == "forward/Block/fc"
    assert nodes["1"]["style"]["backgroundColor"] == PAINT[report.bounds[1]].fill
    assert [edge["sourceNodeId"] for edge in nodes["3"]["incomingEdges"]] == ["2", "2"]
    assert {edge["targetNodeInputId"] for edge in nodes["3"]["incomingEdges"]} == {"0", "1"}
    results = json.loads(render_bytes(report, "nodedata.json"))[GRAPH]["results"]
    assert sum(result["value"] for result in results.values()) == pytest.approx(
        report.timeline.wall_us - report.timeline.host_tail_us, abs=0.01
    )
