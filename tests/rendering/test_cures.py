"""The scoreboard of cures in every rendering, and outlines of what would fuse on request."""

from __future__ import annotations

import json
import re

import pytest

from optrace.cost.profiles import pricing
from optrace.rendering import render_bytes
from optrace.rendering.cures import outlines
from optrace.report import Report
from optrace.report import report as price
from optrace.tracing import open_session


@pytest.fixture(scope="module")
def chains() -> Report:
    """Two chains of two pointwise ops over tensors of different sizes, and a product that stays alone."""
    import torch

    with open_session("fake") as session:
        a, b = torch.empty(64, 64, device="cuda"), torch.empty(128, 128, device="cuda")
        with session.recording():
            results = [(a * 2).relu(), (b * 2).relu(), a @ a]
        del results
    return price(session.graph, pricing("h200"))


def test_each_region_has_one_outline_and_other_calls_none(chains: Report) -> None:
    found = outlines(chains)
    assert {call: number for call, (number, _) in found.items()} == {0: 1, 1: 1, 2: 2, 3: 2}
    assert found[0][1] == found[1][1] != found[2][1]


def test_fusion_is_drawn_on_request_only(chains: Report) -> None:
    plain = render_bytes(chains, "dot").decode()
    shown = render_bytes(chains, "dot", show=["fusion"]).decode()
    assert "xlabel" not in plain
    assert re.findall(r'xlabel="(fused \d)"', shown) == ["fused 1", "fused 1", "fused 2", "fused 2"]


def test_nothing_else_can_be_shown(chains: Report) -> None:
    with pytest.raises(ValueError, match=r"nothing is called 'fusoin' \(one of fusion\)"):
        render_bytes(chains, "dot", show=["fusoin"])


def test_every_format_has_the_four_rows(chains: Report) -> None:
    names = [row["name"] for row in json.loads(render_bytes(chains, "json"))["cures"]["rows"]]
    assert names == ["eager", "+ CUDA graph", "+ fusion", "+ both"]
    text = render_bytes(chains, "txt").decode()
    assert all(re.search(rf"^{re.escape(name)} .*~", text, re.MULTILINE) for name in names)
    assert "mul relu" in text
    assert all(name in render_bytes(chains, "dot").decode() for name in names[1:])


def test_regions_of_the_json_are_calls_launches_and_bytes(chains: Report) -> None:
    first, second = json.loads(render_bytes(chains, "json"))["cures"]["regions"]
    assert (first["calls"], first["launches_before"], first["launches_after"]) == ([0, 1], 2, 1)
    assert first["bytes_before"] == 4 * 64 * 64 * 4
    assert first["bytes_after"] == 2 * 64 * 64 * 4
    assert second["bytes_after"] == 2 * 128 * 128 * 4
