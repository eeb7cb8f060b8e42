from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from optrace.cost.profiles import Pricing, UnknownProfileError, find_gpu, find_host, pricing
from optrace.graph import GraphFormatError, graph_to_record
from optrace.rendering import read_report, render, render_bytes
from optrace.report import report
from tests.rendering.by_hand import HandGraph

FIELDS = {
    "version", "format", "program", "gpu", "mode", "torch", "steps", "complete", "notes", "incomplete",
    "pricing", "totals", "nodes", "edges", "storages", "operators", "frames",
}  # fmt: skip
NODE_FIELDS = {
    "id", "op", "module", "source", "phase", "stream", "inputs", "outputs", "launches", "kernels", "memcpys",
    "memsets", "tensor_bytes", "hbm_read", "hbm_written", "flops", "matmul_flops", "intensity", "host_us",
    "device_us", "gap_us", "bound", "cost_source",
}  # fmt: skip
TOTALS = {
    "launches", "kernels", "memcpys", "memsets", "tensor_bytes", "hbm_bytes", "hbm_read", "hbm_written", "flops",
    "matmul_flops", "peak_bytes", "host_us", "device_us", "wall_us", "b2b_us", "gpu_busy_share", "mfu",
    "bottleneck", "lesson", "partial",
}  # fmt: skip


def load(data: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    document: dict[str, Any] = json.loads(data, parse_constant=refuse)
    return document


def small() -> HandGraph:
    """Priced by rules, so that reading prices it to the same figures."""
    hand = HandGraph(notes=("a note",))
    x, y = hand.tensor((512, 512), name="x"), hand.tensor((512, 512))
    hand.call("aten.relu.default", [x], [y], module="M", cls="M")
    hand.call("aten.add_.Tensor", [y, x], [], writes=[y], alpha=float("inf"), line=2)
    hand.graph.add_free(hand.graph.tensor_storage(y), 1)
    return hand


def test_the_toy_block(toy: HandGraph, golden: Callable[[str, str], None]) -> None:
    golden("toy.json", render_bytes(toy.report(), "json").decode())


def test_totals_are_the_sums_of_the_nodes_figures_without_those_not_known(toy: HandGraph) -> None:
    document = load(render_bytes(toy.report(), "json"))
    unknown = [node for node in document["nodes"] if node["launches"] is None]
    assert [node["op"] for node in unknown] == ["vendor.norm.default"]
    for figure in ("hbm_read", "hbm_written"):
        assert unknown[0][figure] is None
        assert document["totals"][figure] == sum(node[figure] or 0 for node in document["nodes"])


def test_every_promised_field_is_there(toy: HandGraph) -> None:
    document = load(render_bytes(toy.report(), "json"))
    assert document.keys() >= FIELDS
    assert document["totals"].keys() >= TOTALS
    assert document["totals"]["lesson"].keys() == {"kernels", "bytes", "traffic_us", "tax_us"}
    for node in document["nodes"]:
        assert node.keys() >= NODE_FIELDS


def test_partial_totals_name_what_they_leave_out(toy: HandGraph) -> None:
    document = load(render_bytes(toy.report(), "json"))
    assert document["complete"] is False
    missing = {"vendor.norm.default": 1}
    assert document["totals"]["partial"] == dict.fromkeys(
        ("launches", "kernels", "hbm_bytes", "hbm_read", "hbm_written", "flops", "device_us"), missing
    )


def test_not_known_is_null_and_free_is_zero(toy: HandGraph) -> None:
    nodes = load(render_bytes(toy.report(), "json"))["nodes"]
    assert (nodes[0]["launches"], nodes[0]["device_us"]) == (0, 0.0)
    assert (nodes[4]["launches"], nodes[4]["device_us"], nodes[4]["bound"]) == (None, None, "unknown")


def test_counts_are_whole_numbers(toy: HandGraph) -> None:
    totals = load(render_bytes(toy.report(), "json"))["totals"]
    assert isinstance(totals["launches"], int)
    assert isinstance(totals["flops"], int)


def test_a_line_a_node_and_a_line_an_edge(toy: HandGraph) -> None:
    lines = render_bytes(toy.report(), "json").decode().splitlines()
    assert sum(line.startswith('  {"id":') for line in lines) == 8


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"gpu": "h100"},
        {"dispatch_us": 1 / 3, "launch_us": 6.0, "bandwidth_tb_s": 3.3000001},
    ],
)
def test_what_was_written_is_read_back_to_the_same_figures(given: dict[str, Any], tmp_path: Path) -> None:
    written = report(small().graph, pricing(**given))
    render(written, tmp_path / "graph.json")
    read = read_report(tmp_path / "graph.json")
    assert graph_to_record(read.graph) == graph_to_record(written.graph)
    assert list(read.costs) == list(written.costs)
    assert list(read.timeline.spans) == list(written.timeline.spans)
    assert read.timeline.b2b_us == written.timeline.b2b_us
    assert read.pricing == written.pricing
    assert render_bytes(read, "json") == (tmp_path / "graph.json").read_bytes()


def test_another_gpu_drops_the_numbers_replaced_on_the_old_one() -> None:
    data = render_bytes(report(small().graph, pricing("h200", bandwidth_tb_s=1.0, launch_us=7.0)), "json")
    read = read_report(data, gpu="h100")
    assert read.pricing == pricing("h100", launch_us=7.0)
    assert read_report(data, dispatch_us=2.0).pricing == pricing(
        "h200", bandwidth_tb_s=1.0, launch_us=7.0, dispatch_us=2.0
    )


def of_one_machine() -> Pricing:
    """Profiles that were calibrated elsewhere: the host's has a name of its own, the GPU's that of one that ships."""
    gpu, host = find_gpu("h200"), find_host("xeon-vm")
    return pricing(
        msgspec.structs.replace(gpu, kernel_floor_us=9.0),
        msgspec.structs.replace(host, key="workstation-7", launch_us=1.25),
        launch_us=7.0,
    )


def test_profiles_of_one_machine_are_read_on_another(tmp_path: Path) -> None:
    written = report(small().graph, of_one_machine())
    render(written, tmp_path / "graph.json")
    read = read_report(tmp_path / "graph.json")
    assert read.pricing == written.pricing
    assert read.graph.info.notes == ("a note",)
    assert list(read.costs) == list(written.costs)
    assert read_report(tmp_path / "graph.json", gpu="h100", host="xeon-vm").pricing == pricing(
        "h100", "xeon-vm"
    )


@pytest.mark.parametrize("given", [{}, {"dispatch_us": 3.0, "launch_us": 6.0, "bandwidth_tb_s": 3.0}])
def test_profiles_that_ship_are_kept_by_name(given: dict[str, Any]) -> None:
    data = render_bytes(report(small().graph, pricing("h200", "xeon-vm", **given)), "json")
    assert load(data)["pricing"]["profiles"] == {}


def test_a_host_of_which_only_the_name_was_kept(tmp_path: Path) -> None:
    document = load(render_bytes(report(small().graph, of_one_machine()), "json"))
    del document["pricing"]["profiles"]
    (tmp_path / "graph.json").write_text(json.dumps(document))
    read = read_report(tmp_path / "graph.json")
    assert read.pricing == pricing("h200", launch_us=7.0)
    assert read.graph.info.notes == (
        "a note",
        "The file's host profile 'workstation-7' is not on this machine: "
        f"its host times are those of {read.pricing.host.key!r}.",
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"gpu": "abacus"}, UnknownProfileError),
        ({"launch_us": -1.0}, ValueError),
        ({"bandwidth_tb_s": 0.0}, ValueError),
    ],
)
def test_bad_arguments_are_the_caller_s_error(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        read_report(render_bytes(report(small().graph, pricing()), "json"), **arguments)


def changed(**fields: Any) -> bytes:
    document = load(render_bytes(report(small().graph, pricing()), "json"))
    document.update(fields)
    return json.dumps(document).encode()


def spoiled(old: str, new: str) -> bytes:
    text = render_bytes(report(small().graph, pricing()), "json").decode()
    assert old in text
    return text.replace(old, new).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a JSON object"),
        (b"\x00\xff\xfe", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not a JSON object|recursion"),
        (b"{}", "no optrace graph"),
        (b'{"format": "optrace.graph"}', "format version None"),
        (b'{"format": "optrace.graph", "version": 999}', "format version 999"),
        (b'{"traceEvents": []}', "no optrace graph"),
        (changed()[:-40], "not a JSON object"),
        (changed(nodes=[{"id": 0}]), "nodes|op"),
        (changed(storages=[]), "inconsistent: tensor"),
        (changed(storages=[{"bytes": -5, "device": "cuda:0"}] * 2), r"`int` >= 0 - at `\$.storages"),
        (changed(freed_before=[99]), "inconsistent: storage 99 of 2 is freed"),
        (spoiled('"freed":[1]', '"freed":[99]'), "inconsistent: storage 99 of 2 is freed"),
        (spoiled('"shape":[512,512]', '"shape":[512,-512]'), r"`int` >= 0 - at `\$.nodes.*shape"),
        (spoiled('"storage":0', '"storage":-7'), r"`int` >= -1 - at `\$.nodes.*storage"),
        (spoiled('"offset":0', f'"offset":{2**70}'), r"offset"),
        (spoiled('"stream":0', '"stream":65536'), r"`int` <= 65535 - at `\$.nodes.*stream"),
        (spoiled('"frames":[0]', '"frames":[-1]'), r"`int` >= 0 - at `\$.nodes.*frames"),
        (spoiled('"shape":[512,512]', f'"shape":[{2**40},{2**40}]'), "more elements than any device holds"),
        (changed(storages=[{"bytes": 2**62, "device": "cuda:0"}] * 2), r"storages\[0\].bytes"),
        (changed(tail_us=1e300), "tail_us"),
        (changed(steps=10**15), "steps"),
        (spoiled('"kwargs":{}', '"kwargs":{"deep":' + "[" * 60 + "]" * 60 + "}"), "lists in lists"),
        (spoiled("aten.relu.default", "aten.mm.default"), "cannot be priced .*'self' is None, not a tensor"),
        (changed(pricing={"gpu": "abacus"}), "no GPU profile fits 'abacus'"),
        (changed(pricing={"gpu": 3}), "pricing.gpu"),
        (changed(pricing={"overrides": []}), "pricing.overrides"),
        (changed(pricing={"profiles": []}), "pricing.profiles"),
        (changed(pricing={"profiles": {"host": {"key": "mine"}}}), "missing required field"),
        (changed(pricing={"overrides": {"launch_us": "fast"}}), "pricing.overrides.launch_us"),
        (changed(pricing={"overrides": {"bandwidth_tb_s": 0}}), "bandwidth_tb is a rate"),
    ],
)
def test_a_corrupt_or_foreign_file_is_one_clear_error(data: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_bytes(data)
    with pytest.raises(GraphFormatError, match=rf"cannot read .*graph\.json: .*({message})"):
        read_report(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(GraphFormatError, match=r"cannot read .*absent\.json: No such file"):
        read_report(tmp_path / "absent.json")


def test_the_document_names_every_field(toy: HandGraph) -> None:
    document = load(render_bytes(toy.report(), "json"))
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
    names = {*document, *document["totals"], *document["pricing"]}
    for items in ("nodes", "edges", "storages", "frames"):
        names.update(document[items][0])
    names.update(next(iter(document["operators"].values())))
    names.update(document["nodes"][1]["inputs"][0])
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_equal_parts_are_recorded_with_the_calls_of_each_copy() -> None:
    hand = HandGraph()
    last = hand.tensor((4,))
    for layer in range(3):
        for op in ("aten.exp.default", *["aten.neg.default"] * 4):
            out = hand.tensor((4,))
            hand.call(op, [last], [out], module=f"Net.{layer}", cls="Layer")
            last = out
    document = json.loads(render_bytes(hand.report(), "json"))
    layers, negs = document["folding"]
    assert (layers["name"], layers["count"], layers["inside"]) == ("Net.0-2", 3, None)
    assert layers["copies"] == [list(range(5)), list(range(5, 10)), list(range(10, 15))]
    # Inside the first copy.
    assert (negs["name"], negs["count"], negs["inside"], negs["copies"]) == (
        "neg",
        4,
        0,
        [[1], [2], [3], [4]],
    )
