from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from xml.etree import ElementTree

import pytest

from optrace.rendering import render_bytes
from optrace.rendering.details import node_details
from optrace.rendering.markup import visible
from optrace.rendering.palette import PAINT
from optrace.rendering.picture import PictureNode
from optrace.rendering.sums import costs_of
from tests.rendering.by_hand import HandGraph

SVG = "{http://www.w3.org/2000/svg}"
TITLE = "{http://www.w3.org/1999/xlink}title"


def dot_of(hand: HandGraph, **options: int) -> str:
    return render_bytes(hand.report(), "dot", **options).decode()


def parts(hand: HandGraph, cls: str, **options: int) -> list[ElementTree.Element]:
    """The SVG's groups of a class: ``node``, ``edge`` or ``cluster``."""
    root = ElementTree.fromstring(render_bytes(hand.report(), "svg", **options))
    return [group for group in root.iter(f"{SVG}g") if group.get("class") == cls]


def shown(element: ElementTree.Element) -> str:
    return "\n".join((text.text or "").replace("\xa0", " ") for text in element.iter(f"{SVG}text"))


def tooltip(element: ElementTree.Element) -> str:
    return "".join(link.get(TITLE, "") for link in element.iter(f"{SVG}a"))


def test_the_toy_block(toy: HandGraph, golden: Callable[[str, str], None]) -> None:
    golden("toy.dot", dot_of(toy))


def test_a_node_says_what_it_is_and_what_bounds_it(toy: HandGraph) -> None:
    node = next(node for node in parts(toy, "node") if "mm" in shown(node))
    text = shown(node)
    assert "f32[8, 64]" in text
    assert re.search(r"~[\d.]+ us", text)
    assert "launch, 3.2 FLOP/B" in text
    assert "launch" in text


def test_a_tooltip_has_the_full_record(toy: HandGraph) -> None:
    node = next(node for node in parts(toy, "node") if "mm" in shown(node))
    told = tooltip(node)
    for fact in (
        "%1 aten.mm.default",
        "in: f32[64, 64] stride [1, 64] cuda:0",
        "parameter, Block.fc.weight",
        "module: Block.fc (Linear, call 1)",
        "source: /home/me/toy.py:4 step",
        "phase forward, stream 0",
        "launches 1: 1 kernel",
        "through HBM 18.4 kB read, 2.05 kB written",
        "65.5 kFLOP in matmuls",
        "bound: launch; price from: rule",
    ):
        assert fact in told, fact


def test_every_node_has_a_tooltip(toy: HandGraph) -> None:
    nodes = parts(toy, "node")
    assert len(nodes) == 8 + 2  # eight calls and the heads of the two phases
    assert all(tooltip(node).strip() for node in nodes)


def test_modules_are_nested_boxes_and_a_lone_node_gets_a_caption(toy: HandGraph) -> None:
    titles = [shown(cluster) for cluster in parts(toy, "cluster")]
    assert [title.split()[0] for title in titles] == ["forward", "Block", "fc", "optimizer"]
    assert "Linear" in titles[2]


def test_a_view_is_quiet(toy: HandGraph) -> None:
    view = next(node for node in parts(toy, "node") if shown(node).startswith("t "))
    assert not list(view.iter(f"{SVG}path"))


def test_what_has_no_price_shows_a_question_mark_and_a_dashed_border(toy: HandGraph) -> None:
    node = next(node for node in parts(toy, "node") if "vendor.norm" in shown(node))
    assert shown(node).splitlines()[-2:] == ["?  0 %", "unknown, ?"]
    assert any(path.get("stroke-dasharray") for path in node.iter(f"{SVG}path"))


def test_area_and_border_grow_with_the_share_of_the_wall_clock() -> None:
    hand = HandGraph()
    for us in (10.0, 100.0, 1000.0):
        hand.call(f"aten.op{us:.0f}.default", [], [hand.tensor((4,))], device_us=us)
    looks = re.findall(r"height=([\d.]+) .*?penwidth=([\d.]+) .*?width=([\d.]+)", dot_of(hand), re.DOTALL)
    assert len(looks) == 3
    for figures in zip(*looks, strict=True):
        assert sorted(figures, key=float) == list(figures)


def test_edges_are_as_wide_as_their_tensors_are_large() -> None:
    hand = HandGraph()
    small, large, out = hand.tensor((4,)), hand.tensor((1000, 1000)), hand.tensor((4,))
    hand.call("aten.a.default", [], [small])
    hand.call("aten.b.default", [], [large])
    hand.call("aten.c.default", [small, large], [out])
    # 16 B, and 4 MB: 0.6 + 0.5 * log10(4000)
    assert re.findall(r"-> n2 \[penwidth=([\d.]+)", dot_of(hand)) == ["0.60", "2.40"]


def test_a_folded_picture_says_so_and_how_to_open_it_up() -> None:
    hand = HandGraph()
    hand.chain(500, line=3)
    assert "500 calls drawn as 1 node" in dot_of(hand)
    assert "To open it up: --unfold." in dot_of(hand)


def test_the_legend_says_what_the_times_are(toy: HandGraph) -> None:
    text = dot_of(toy)
    assert "All times (~) are predicted for Test GPU" in text
    assert "ridge point" in text
    assert (
        "? launches, kernels, hbm_bytes, hbm_read, hbm_written, flops, device_us: not known for vendor.norm.default x1"
        in re.sub(r"<BR[^>]*>", " ", text)
    )


EVIL = [
    "</svg><script>alert(1)</script>",
    'say "hi" \\N \\G \\l \\',
    "<b>bold</b> &amp; &lt; & ]]>",
    "line\nbreak\r\ttab",
    "nul\x00 bell\x07 esc\x1b[31m \ud800 \ufffe",
    "été 日本 😀",
    "a:b;c{d}|e -> f [g=h]",
]


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("where", ["module", "op", "file", "program", "argument", "tensor"])
def test_text_of_the_program_is_shown_and_not_run(name: str, where: str) -> None:
    hand = HandGraph(name if where == "program" else "p.py")
    module = {"module": name, "cls": name} if where == "module" else {"module": "M", "cls": "M"}
    op = f"aten.{name}.default" if where == "op" else "aten.relu.default"
    for _ in range(2):
        tensor = hand.tensor((4,), name=name if where == "tensor" else "")
        hand.call(op, [tensor], [tensor], file=name if where == "file" else "m.py", **module, mode=name if where == "argument" else 1)  # fmt: skip
    svg = render_bytes(hand.report(), "svg")
    root = ElementTree.fromstring(svg)
    assert not list(root.iter("script"))
    assert not [element for element in root.iter() if element.tag.endswith("script")]
    text = " ".join([shown(root), *(link.get(TITLE, "") for link in root.iter(f"{SVG}a"))])
    for word in re.findall(r"\w{3,}", name, re.ASCII):
        assert word in text
    assert "\x00" not in text


@pytest.mark.parametrize("name", EVIL)
def test_names_of_a_program_are_shown_in_listings(name: str) -> None:
    hand = HandGraph()
    hand.call("aten.relu.default", [hand.tensor((4,))], [hand.tensor((4,))], module=name, cls=name)
    report = hand.report()
    listed = render_bytes(report, "txt").decode("ascii")
    assert all(line.isprintable() for line in listed.splitlines())
    written = ElementTree.fromstring(render_bytes(report, "graphml"))
    assert visible(name) in [element.text for element in written.iter()]


def test_escapes_stand_in_the_picture_as_they_were_written() -> None:
    hand = HandGraph("a \\N &lt; <i> b")
    hand.chain(1)
    root = ElementTree.fromstring(render_bytes(hand.report(), "svg"))
    assert "a \\N &lt; <i> b" in shown(root)


def test_an_empty_run_has_a_picture() -> None:
    assert "nothing was dispatched" in dot_of(HandGraph())
    render_bytes(HandGraph().report(), "svg")


def lightness(color: str) -> float:
    """CIE L*, 0 to 100: what is left of a colour in greyscale print."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return 116 * luminance ** (1 / 3) - 16


def test_the_colours_differ_in_greyscale_and_their_text_is_legible() -> None:
    fills = [lightness(PAINT[bound].fill) for bound in ("launch", "memory", "compute", "sync", "unknown")]
    assert min(abs(a - b) for a, b in combinations(fills, 2)) > 9
    for paint in PAINT.values():
        assert abs(lightness(paint.fill) - lightness(paint.text)) > 40


def test_a_long_list_of_scalars_is_shortened_in_a_tooltip() -> None:
    hand = HandGraph()
    hand.call("aten._foreach_div_.ScalarList", [], [], scalars=tuple(float(n) for n in range(700)))
    text = dot_of(hand)
    assert "10.0, 11.0, ... and 688 more]" in text
    assert "12.0" not in text


def test_of_many_calls_drawn_with_one_a_tooltip_names_the_first() -> None:
    hand = HandGraph()
    for _ in range(700):
        hand.call("aten.detach.default", [], [])
    report = hand.report()
    call = PictureNode("n", "op", "detach", 0, range(700), (), costs_of(report, [0]), "host")
    (told,) = (line for line in node_details(report, call) if line.startswith("drawn with it"))
    assert told == f"drawn with it: {', '.join(f'%{n} detach' for n in range(1, 12))}, ... and 688 more"
