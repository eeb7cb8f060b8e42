from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import fields

import pytest

from optrace.rendering.collapse import Folder
from optrace.rendering.errors import RenderError
from optrace.rendering.options import DrawOptions
from optrace.rendering.picture import Picture, PictureNode
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


def draw(hand: HandGraph, **options: object) -> Picture:
    return next(pictures(hand, **options))


def pictures(hand: HandGraph, **options: object) -> Iterator[Picture]:
    return Folder(hand.report(), DrawOptions(**options)).pictures()  # type: ignore[arg-type]


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


def test_pictures_get_coarser_down_to_one_node() -> None:
    counts = [len(picture.graph) for picture in pictures(stack(39, phases=True))]
    # All 118 calls; 79 that launch are too many for half of it, so equal blocks are one; then phases, then all.
    assert counts == [118, 3, 1]


def test_a_small_picture_shows_every_call() -> None:
    picture = draw(stack(2))
    assert not picture.folded
    assert [node.label for node in picture.nodes] == ["t", "mm", "relu", "t", "mm", "relu"]


def test_views_join_what_they_view_or_else_their_first_user() -> None:
    picture = draw(stack(3), max_nodes=6)
    assert picture.grain == "launch"
    assert [(node.id, list(node.calls)) for node in picture.nodes][:4] == [
        ("n1", [0, 1]),
        ("n2", [2]),
        ("n4", [3, 4]),
        ("n5", [5]),
    ]
    assert nodes(picture)["n1"].is_single


def test_equal_modules_are_one_box_of_one_copy() -> None:
    picture = draw(stack(40), max_nodes=10)
    assert [(node.label, node.repeats, node.copies, len(node.calls)) for node in picture.nodes] == [
        ("mm", 1, 40, 80),
        ("relu", 1, 40, 40),
    ]
    assert [(group.name, group.cls, group.count) for group in picture.groups.values()] == [
        ("Net.blocks.0-39", "Block", 40),
        ("fc", "Linear", 1),
    ]
    # One copy's edges: inside it, and from one copy to the next.
    assert {(src.label, dst.label) for src, dst, _ in picture.edges} == {("mm", "relu"), ("relu", "mm")}


def test_repeats_of_an_op_are_one_node() -> None:
    hand = HandGraph()
    hand.chain(1000, line=3, module="RNN.cell", cls="Cell")
    (node,) = draw(hand).nodes
    assert (node.kind, node.label, node.repeats) == ("op", "relu", 1000)
    assert not draw(hand).graph.edges


def test_a_loop_is_named_for_its_lines() -> None:
    hand = HandGraph()
    for _ in range(300):
        for line, op in enumerate(("aten.neg.default", "aten.exp.default", "aten.sin.default"), 7):
            hand.chain(1, op, line=line)
    picture = draw(hand, max_nodes=1)
    assert [(node.kind, node.label, node.repeats) for node in picture.nodes] == [("loop", "toy.py:7-9", 300)]
    picture = draw(hand)
    assert [node.label for node in picture.nodes] == ["neg", "exp", "sin"]
    (group,) = picture.groups.values()
    assert (group.name, group.count, group.is_module) == ("toy.py:7-9", 300, False)


def test_a_module_to_expand_is_drawn_apart_and_open() -> None:
    picture = draw(stack(300), max_nodes=3, expand=frozenset({"Net.blocks.7"}))
    assert [(node.label, node.repeats, node.copies) for node in picture.nodes] == [
        ("0-6", 7, 7),
        ("mm", 1, 1),
        ("relu", 1, 1),
        ("8-299", 292, 292),
    ]


def test_a_module_to_expand_that_is_none() -> None:
    with pytest.raises(
        RenderError, match=r"--expand Net\.blocks\.9: no call was recorded in a module of that path"
    ):
        draw(stack(3), expand=frozenset({"Net.blocks.9"}))


def test_unfolded_each_copy_is_drawn_as_far_as_there_is_room() -> None:
    assert [node.repeats for node in draw(stack(30), max_nodes=35, unfold=True).nodes] == [1] * 35
    assert [node.label for node in draw(stack(30), max_nodes=29, unfold=True).nodes] == ["Net.blocks"]


def test_a_first_layer_that_differs_stands_apart_and_says_how() -> None:
    hand = HandGraph()
    last = hand.tensor((8, 8))
    for number in range(12):
        for op in ("aten.neg.default", "aten.exp.default", *(["aten.sin.default"] if number == 0 else [])):
            out = hand.tensor((8, 8))
            hand.call(op, [last], [out], module=f"Net.layers.{number}", cls="Layer")
            last = out
    first, others = draw(hand, max_nodes=2).nodes
    assert (first.label, first.repeats, first.differs) == ("0", 1, "unlike 1-11: with sin")
    assert (others.label, others.repeats, others.differs) == ("1-11", 11, "")


def test_depth_draws_deeper_modules_as_one_node_each() -> None:
    picture = draw(stack(3), depth=2)
    assert [(node.kind, node.label, node.cls) for node in picture.nodes] == [
        ("module", str(i), "Block") for i in range(3)
    ]
    assert [list(node.calls) for node in picture.nodes] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_folded_list_of_modules_says_what_is_in_it() -> None:
    (node,) = draw(stack(12), depth=1).nodes
    assert (node.label, node.inside[0]) == ("Net.blocks", "Block x12")
    assert node.cost.launches == 24


def test_past_120_nodes_a_picture_folds_to_60() -> None:
    hand = HandGraph()
    for number in range(450):
        hand.chain(1, f"aten.op{number}.default", line=number)
    assert len(draw(hand, max_nodes=450).graph) == 450
    folded = draw(hand)
    assert folded.grain == "repeat"
    # 450 runs are 18 stretches of 24 and one of 18; there is room to open one of either.
    assert len(folded.graph) == 17 + 24 + 18
    assert [node.label for node in folded.nodes if node.kind == "stretch"][1] == "toy.py:48-71"


def test_what_takes_most_of_the_wall_clock_is_opened() -> None:
    hand = HandGraph()
    for module, device_us in (("Net.quick", 1.0), ("Net.slow", 900.0)):
        for number in range(8):
            hand.call(f"aten.op{number}.default", [], [], device_us=device_us, module=module, cls="M")
    assert [node.label for node in draw(hand, max_nodes=9).nodes] == ["quick", *(f"op{n}" for n in range(8))]


def test_a_phase_is_a_box_only_where_there_are_several() -> None:
    assert draw(stack(1)).phases == ()
    assert draw(stack(1, phases=True)).phases == ("forward", "backward")
    group = nodes(draw(stack(1, phases=True)))["n2"].group
    assert group[0] == "forward"
    assert [part.partition(" ")[0] for part in group[1:]] == ["Net.blocks.0"]


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
        for line in range(calls // 4):
            hand.chain(4, line=line % 7)
        report = hand.report()
        report.graph.edges  # noqa: B018 - the dependences are the graph's work, not the folding's
        start = time.process_time()  # of this process: others may be busy
        next(Folder(report, DrawOptions()).pictures())
        return time.process_time() - start

    small, large = (min(seconds(calls) for _ in range(3)) for calls in (1000, 8000))
    assert large < 8 * small * 3
