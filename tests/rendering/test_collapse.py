from __future__ import annotations

import time
from dataclasses import fields

import pytest

from optrace.rendering.collapse import Folder
from optrace.rendering.options import DrawOptions
from optrace.rendering.picture import Level, Picture, PictureNode
from optrace.rendering.sums import CostSum, costs_of
from tests.rendering.by_hand import HandGraph


def stack(blocks: int, phases: bool = False) -> HandGraph:
    """``blocks`` blocks of a linear (a view and an mm) and a relu, in modules ``Net.blocks.<i>``."""
    hand = HandGraph()
    last = hand.tensor((8, 8))
    for number in range(blocks):
        block = {"module": f"Net.blocks.{number}", "cls": "Block"}
        linear = {"module": f"Net.blocks.{number}.fc", "cls": "Linear"}
        weight, view, product, out = (hand.tensor((8, 8)) for _ in range(4))
        hand.call("aten.t.default", [weight], [view], view=True, kernels=0, device_us=0.0, line=2, **linear)
        hand.call("aten.mm.default", [last, view], [product], line=2, flops=1024, read=512, **linear)
        hand.call("aten.relu.default", [product], [out], line=3, written=256, **block)
        last = out
    if phases:
        hand.call("aten.neg.default", [last], [hand.tensor((8, 8))], phase="backward", line=5)
    return hand


def draw(hand: HandGraph, **options: int) -> Picture:
    folder = Folder(hand.report())
    chosen = DrawOptions(**options)
    levels = folder.levels(chosen)
    level = next((level for level, nodes in levels if nodes <= chosen.node_limit), levels[-1][0])
    return folder.picture(level)


def nodes(picture: Picture) -> dict[str, PictureNode]:
    return {node.id: node for node in picture.nodes}


@pytest.mark.parametrize("depth", [None, 0, 1, 2, 3, 9])
@pytest.mark.parametrize("limit", [1, 3, 8, 20, 400])
def test_every_call_is_in_one_node_and_no_cost_is_lost(depth: int | None, limit: int) -> None:
    report = stack(6, phases=True).report()
    picture = draw(stack(6, phases=True), max_nodes=limit, **({} if depth is None else {"depth": depth}))
    assert sorted(call for node in picture.nodes for call in node.calls) == list(range(len(report.graph)))
    summed = sum((node.cost for node in picture.nodes), CostSum())
    whole = costs_of(report, range(len(report.graph)))
    for field in fields(CostSum):
        if field.name != "host":
            assert getattr(summed, field.name) == pytest.approx(getattr(whole, field.name)), field.name
    assert summed.host.total_us == pytest.approx(whole.host.total_us)


def test_levels_only_get_coarser_and_count_what_is_drawn() -> None:
    folder = Folder(stack(6, phases=True).report())
    levels = folder.levels(DrawOptions())
    counts = [count for _, count in levels]
    assert counts == sorted(counts, reverse=True)
    for level, count in levels:
        assert len(folder.picture(level).graph) == count


def test_a_small_picture_shows_every_call() -> None:
    picture = draw(stack(2))
    assert not picture.folded
    assert [node.label for node in picture.nodes] == ["t", "mm", "relu", "t", "mm", "relu"]


def test_views_join_what_they_view_or_else_their_first_user() -> None:
    folder = Folder(stack(2).report())
    picture = folder.picture(Level("launch"))
    assert [(node.id, list(node.calls)) for node in picture.nodes] == [
        ("n1", [0, 1]),
        ("n2", [2]),
        ("n4", [3, 4]),
        ("n5", [5]),
    ]
    assert nodes(picture)["n1"].is_single


def test_repeats_of_an_op_from_one_line_are_one_node() -> None:
    hand = HandGraph()
    hand.chain(1000, line=3, module="RNN.cell", cls="Cell")
    picture = draw(hand)
    (node,) = picture.nodes
    assert (node.kind, node.label, node.repeats) == ("op", "relu", 1000)
    assert not picture.graph.edges


def test_ops_from_different_lines_or_modules_stay_apart() -> None:
    hand = HandGraph()
    hand.chain(300, line=3)
    hand.chain(300, line=4)
    hand.chain(300, line=4, module="Other", cls="Other")
    assert sorted(node.repeats for node in draw(hand).nodes) == [300, 300, 300]


def test_depth_draws_deeper_modules_as_one_node_each() -> None:
    picture = draw(stack(3), depth=2)
    assert [(node.kind, node.label, node.cls) for node in picture.nodes] == [
        ("module", str(i), "Block") for i in range(3)
    ]
    assert [list(node.calls) for node in picture.nodes] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_folded_list_of_modules_says_what_is_in_it() -> None:
    (node,) = draw(stack(12), depth=1).nodes
    assert (node.label, node.inside[0]) == ("blocks", "Block x12")
    assert node.cost.launches == 24


def test_the_picture_never_passes_400_nodes() -> None:
    folder = Folder(stack(200).report())
    assert [count for _, count in folder.levels(DrawOptions())][:2] == [600, 400]
    assert len(draw(stack(200)).graph) == 400
    deep = draw(stack(201))
    assert len(deep.graph) <= 400
    # Blocks are one node each; finer would be two for each of 201.
    assert deep.level.depth == 2


def test_max_nodes_opens_it_up() -> None:
    assert len(draw(stack(200), max_nodes=600).graph) == 600


def test_lines_then_functions_then_phases() -> None:
    hand = HandGraph()
    for line in range(900):
        hand.chain(2, line=line, function=f"f{line // 450}", phase="forward" if line < 890 else "optimizer")
    assert [str(draw(hand, max_nodes=n).level.grain) for n in (1800, 899, 10, 3, 2)] == [
        "call",
        "function",
        "function",
        "function",
        "phase",
    ]


def test_a_phase_is_a_box_only_where_there_are_several() -> None:
    assert draw(stack(1)).phases == ()
    assert draw(stack(1, phases=True)).phases == ("forward", "backward")
    assert nodes(draw(stack(1, phases=True)))["n2"].group == ("forward", "Net", "blocks", "0")


def test_a_folded_node_is_bound_by_its_largest_cause() -> None:
    hand = HandGraph()
    hand.call("aten.a.default", [], [], device_us=1.0, module="M", cls="M")
    hand.call("aten.b.default", [], [], device_us=500.0, roof="compute", module="M", cls="M")
    (node,) = draw(hand, depth=0).nodes
    assert node.bound == "compute"


def test_an_operand_used_twice_is_two_edges() -> None:
    hand = HandGraph()
    x, y, z = (hand.tensor((4,)) for _ in range(3))
    hand.call("aten.relu.default", [x], [y])
    hand.call("aten.add.Tensor", [y, y], [z])
    assert len(draw(hand).graph.edges) == 2


def test_order_edges_that_data_edges_imply_are_not_drawn() -> None:
    hand = HandGraph()
    w = hand.tensor((4,))
    a, b = hand.tensor((4,)), hand.tensor((4,))
    hand.call("aten.mul.Tensor", [w], [a], line=1)
    hand.call("aten.neg.default", [a], [b], line=2)
    hand.call("aten.add_.Tensor", [w, b], [], writes=[w], line=3)
    edges = list(draw(hand).edges)
    assert [(src.id, dst.id, edge.kind) for src, dst, edge in edges] == [
        ("n0", "n1", "data"),
        ("n1", "n2", "data"),
    ]


def test_an_order_edge_that_nothing_implies_is_drawn() -> None:
    hand = HandGraph()
    w, a = hand.tensor((4,)), hand.tensor((4,))
    hand.call("aten.mul.Tensor", [w], [a], line=1)
    hand.call("aten.zero_.default", [w], [], writes=[w], line=2)
    assert [edge.kind for _, _, edge in draw(hand).edges] == ["order"]


def test_folding_is_linear() -> None:
    def seconds(calls: int) -> float:
        hand = HandGraph()
        hand.chain(calls, line=3)
        report = hand.report()
        report.graph.edges  # noqa: B018 - the dependences are the graph's work, not the folding's
        start = time.process_time()  # of this process: others may be busy
        folder = Folder(report)
        folder.levels(DrawOptions())
        folder.picture(Level("op"))
        return time.process_time() - start

    small, large = (min(seconds(calls) for _ in range(3)) for calls in (1000, 8000))
    assert large < 8 * small * 3
