"""The page's data: what is packed is what the report holds. No browser takes part."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optrace.rendering import render, render_bytes
from optrace.rendering.options import DrawOptions
from optrace.rendering.page.alternatives import alternatives
from optrace.rendering.page.columns import Packer
from optrace.rendering.page.document import document
from optrace.rendering.page.prices import device_terms, fused_terms
from optrace.rendering.page.terms import knots_of
from tests.page.programs import hostile, many

ROOT = Path(__file__).parents[2]
NUMPY = {"Uint8": "<u1", "Uint16": "<u2", "Uint32": "<u4", "Int32": "<i4", "Float32": "<f4", "Float64": "<f8"}


def unpacked(packed: bytes) -> tuple[Any, Any]:
    """The header, and a function from a place to its numbers."""
    data = gzip.decompress(packed)
    length = int.from_bytes(data[:4], "little")

    def column(place: tuple[str, int, int]) -> list[float]:
        kind, offset, count = place
        return list(np.frombuffer(data, NUMPY[kind], count, 4 + length + offset).tolist())

    return json.loads(data[4 : 4 + length]), column


def test_columns_come_back_and_equal_ones_are_kept_once() -> None:
    pack = Packer()
    first = pack.add("Uint8", [1, 2, 3])
    second = pack.add("Float64", [0.5, -1.0])
    assert pack.add("Uint8", [1, 2, 3]) == first
    assert pack.add("Uint16", [1, 2, 3]) != first
    header, column = unpacked(pack.pack({"a": first, "b": second}))
    assert column(header["a"]) == [1, 2, 3]
    assert column(header["b"]) == [0.5, -1.0]
    assert second[1] % 8 == 0


def test_a_number_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(OverflowError):
        Packer().add("Uint8", [256])


def test_parts_of_device_time_make_up_the_whole(page_of: Any, transformer: Path, toy: Path) -> None:
    for graph in (transformer, toy):
        report, _ = page_of(graph)
        for term, cost in zip(device_terms(report), report.costs, strict=True):
            assert term.us == pytest.approx(cost.device_us, rel=1e-9)
        cures = report.cures
        for term, cost in zip(fused_terms(report, cures), cures.fused.costs, strict=True):
            assert term.us == pytest.approx(cost.device_us, rel=1e-9)


def test_knots_follow_a_time_that_bends_both_ways() -> None:
    """The least of two lines bends down, the larger of two up; every place between knots is met within 1e-4."""

    def time(x: float) -> float:
        return min(3 + 2 * x, max(1 + 5 * x, 4 + x))

    knots = knots_of(time, (0.01, 1.0, 1000.0))
    assert [x for x, _ in knots] == sorted(x for x, _ in knots)
    for x in np.geomspace(0.01, 1000.0, 500).tolist():
        assert np.interp(x, *zip(*knots, strict=True)) == pytest.approx(time(x), rel=1e-4)
    # Straight stretches take no knots: three bends and the places that were asked for.
    assert len(knots) < 60


def test_counts_in_the_data_are_the_reports(page_of: Any, transformer: Path) -> None:
    report, _ = page_of(transformer)
    header, column = unpacked(document(report, DrawOptions())[0])
    run = header["runs"][0]
    columns = run["pricings"][0]["columns"]
    for name, total in (
        ("launches", "launches"),
        ("hbmRead", "hbm_read"),
        ("hbmWritten", "hbm_written"),
        ("flops", "flops"),
        ("tensorBytes", "tensor_bytes"),
    ):
        assert sum(column(columns[name])) == report.totals[total].value
    structure = run["structure"]
    assert structure["calls"] == len(report.graph)
    assert [structure["ops"][op]["name"] for op in column(structure["op"])] == [
        report.graph.facts(call).name for call in range(len(report.graph))
    ]
    edges = structure["edges"]
    assert list(zip(column(edges["src"]), column(edges["dst"]), strict=True)) == [
        (edge.src, edge.dst) for edge in report.graph.edges
    ]


def test_live_bytes_add_up_to_what_the_allocator_holds(page_of: Any, transformer: Path) -> None:
    """Blocks of storages alive after a call, and what libraries keep."""
    report, _ = page_of(transformer)
    header, column = unpacked(document(report, DrawOptions())[0])
    storages = header["runs"][0]["structure"]["storages"]
    rows = list(
        zip(column(storages["bytes"]), column(storages["born"]), column(storages["died"]), strict=True)
    )
    memory = report.priced.memory
    for call in (0, len(report.graph) // 2, len(report.graph) - 1):
        live = sum(nbytes for nbytes, born, died in rows if born <= call < died)
        assert live + memory.library == memory.live_after[call]


def test_a_source_that_is_no_python_is_not_copied(tmp_path: Path) -> None:
    """A record can name any file of its reader's machine."""
    from tests.rendering.by_hand import HandGraph

    secret, module = tmp_path / "secret.txt", tmp_path / "model.py"
    secret.write_text("password")
    module.write_text("print(1)")
    hand = HandGraph()
    for file in (secret, module, tmp_path / "gone.py"):
        hand.call("aten.relu.default", [hand.tensor((4,))], [hand.tensor((4,))], file=str(file))
    header, _ = unpacked(document(hand.report(), DrawOptions())[0])
    assert header["runs"][0]["structure"]["sources"] == {str(module): "print(1)"}


def test_alternatives_stay_in_their_budget() -> None:
    report = many(100)
    everything = alternatives(report, budget=100_000)
    assert everything.notes == ()
    assert {other.pricing.gpu.key for other in everything.reports} >= {"h200", "h100", "l4"}
    few = alternatives(report, budget=450)
    assert [other.pricing.gpu.key for other in few.reports] == ["h200"] * 4
    assert "other L2 sizes" not in few.notes[0]
    assert "h100" in few.notes[0]
    none = alternatives(report, budget=399)
    assert none.reports == ()
    assert "other L2 sizes" in none.notes[0]


def test_the_same_report_gives_the_same_bytes_with_no_markup_of_the_program(tmp_path: Path) -> None:
    page = render_bytes(hostile(), "html")
    assert page == render_bytes(hostile(), "html")
    assert b"<img" not in page
    assert page.count(b"</script>") == 2
    assert render(hostile(), tmp_path / "report.html") == []


def test_only_the_pages_own_script_may_run() -> None:
    page = render_bytes(hostile(), "html").decode()
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_the_built_script_is_that_of_its_sources() -> None:
    """``cd web && npm ci && npm run build`` was run since ``web/`` was changed last."""
    digest = hashlib.sha256()
    web = ROOT / "web"
    sources = sorted(path for path in (web / "src").rglob("*") if path.is_file())
    for path in [*sources, web / "package-lock.json"]:
        digest.update(path.relative_to(web).as_posix().encode() + b"\0" + path.read_bytes())
    built = (ROOT / "optrace/rendering/page/assets/page.js").read_text()
    found = re.match(r"/\* built from web/, sources ([0-9a-f]{64}) \*/", built)
    assert found is not None
    assert found[1] == digest.hexdigest()


def test_licences_of_what_the_script_contains_travel_with_it() -> None:
    page = render_bytes(hostile(), "html").decode()
    for package in ("@dagrejs/dagre", "d3-zoom", "d3-scale", "@tanstack/virtual-core"):
        assert package in page
