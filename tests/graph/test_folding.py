from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest

from optrace.graph import Frame, ModuleCall, OpFacts, OpGraph, Phase, Source, Storage
from optrace.graph.folding import Item, fold
from optrace.graph.folding.items import READABLE
from optrace.graph.folding.repeats import Run, runs
from optrace.graph.opgraph import HOLE, READS, Layout


class Calls:
    """A graph under construction: each call reads tensors and gives one, all of one shape unless another is said."""

    def __init__(self) -> None:
        self.graph = OpGraph()

    def tensor(self, size: int = 4) -> int:
        storage = self.graph.add_storage(Storage(4 * size, "cuda:0"))
        return self.graph.add_tensor(
            self.graph.layouts.add(Layout((size,), (1,), "float32", "cuda:0")), storage, 0
        )

    def call(
        self,
        op: str,
        *inputs: int,
        module: str = "",
        cls: str = "M",
        number: int = 1,
        phase: Phase = "forward",
        size: int = 4,
        line: int = 1,
    ) -> int:
        """Returns the tensor that is given."""
        graph, out = self.graph, self.tensor(size)
        graph.add_call(
            graph.add_op_facts(OpFacts(f"aten.{op}.default")),
            graph.add_template(tuple(HOLE for _ in inputs), (), HOLE),
            inputs,
            [READS] * len(inputs),
            [out],
            source=graph.sources.add(Source((Frame("/me/net.py", line, "step", True),))),
            module=graph.module_calls.add(ModuleCall(module, cls, number)) if module else -1,
            phase=phase,
        )
        return out


def outline(item: Item) -> object:
    """``name xcount: (...)`` of an item and all inside it."""
    name = f"{item.name} x{item.count}" if item.count > 1 else item.name
    return (name, [outline(child) for child in item.children]) if item.children else name


def inside(calls: Calls) -> list[object]:
    return [outline(child) for child in fold(calls.graph).children]


def twice(start: int, body: int) -> int:
    return 2


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("", []),
        ("a", [(0, 1, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("abcabcabd", [(0, 3, 2), (6, 1, 1), (7, 1, 1), (8, 1, 1)]),
        ("xabababy", [(0, 1, 1), (1, 2, 3), (7, 1, 1)]),
        # The outer loop covers more than the inner one that it begins with.
        ("aabaabaab", [(0, 3, 3)]),
        # What begins the body comes back within it more often than next occurrences are tried.
        ("abacadaeafag" * 3, [(0, 12, 3)]),
    ],
)
def test_runs(row: str, expected: list[tuple[int, int, int]]) -> None:
    assert [(run.start, run.body, run.count) for run in runs([ord(c) for c in row], twice)] == expected


def test_runs_are_repeats_and_cover_the_row() -> None:
    chance = random.Random(0)
    for _ in range(300):
        row = [chance.randrange(3) for _ in range(chance.randrange(40))]
        found = runs(row, twice)
        again = [number for run in found for number in row[run.start : run.start + run.body] * run.count]
        assert again == row
        assert [run.start for run in found] == [0, *(run.end for run in found)][: len(found)]


def longest(row: Sequence[int]) -> int:
    """What the best run from the start covers, by trying all."""
    best = 1
    for body in range(1, len(row) // 2 + 1):
        count = 1
        while row[count * body : (count + 1) * body] == row[:body]:
            count += 1
        best = max(best, count * body if count > 1 else 1)
    return best


def test_the_first_run_covers_most() -> None:
    chance = random.Random(1)
    for _ in range(300):
        body = [chance.randrange(4) for _ in range(chance.randrange(1, 20))]
        row = body * chance.randrange(2, 5) + [chance.randrange(4) for _ in range(8)]
        first = runs(row, twice)[0]
        assert first.body * first.count == longest(row), row


def test_fewer_turns_than_asked_for_are_no_run() -> None:
    assert runs([1, 1, 1], lambda start, body: 4) == [Run(0, 1, 1), Run(1, 1, 1), Run(2, 1, 1)]


def test_layers_are_one_item_with_a_count() -> None:
    calls = Calls()
    x = calls.call("embed", module="Net.embed")
    for layer in range(5):
        h = calls.call("norm", x, module=f"Net.layers.{layer}.norm")
        x = calls.call("add", h, x, module=f"Net.layers.{layer}", cls="Block")
    assert inside(calls) == [("Net", [("embed", ["embed"]), ("layers.0-4 x5", [("norm", ["norm"]), "add"])])]


def test_layers_with_other_edges_inside_are_not_equal() -> None:
    calls = Calls()
    x, other = calls.tensor(), calls.tensor()
    for layer in range(4):
        h = calls.call("norm", x, module=f"Net.{layer}")
        # The last layer leaves its own result out.
        x = calls.call("add", h if layer < 3 else other, x, module=f"Net.{layer}")
    (net,) = fold(calls.graph).children
    assert [(item.name, item.count, item.differs) for item in net.children] == [
        ("0-2", 3, ""),
        ("3", 1, "unlike 0-2: the same calls, connected or ordered otherwise"),
    ]


def test_a_layer_of_another_shape_is_named() -> None:
    calls = Calls()
    x = calls.tensor()
    for layer in range(4):
        x = calls.call("mm", x, module=f"Net.{layer}", size=8 if layer == 0 else 4)
        x = calls.call("relu", x, module=f"Net.{layer}")
    first = fold(calls.graph).children[0].children[0]
    # The relu of layer 0 reads the larger tensor.
    assert first.differs == "unlike 1-3: other shapes or arguments of mm, relu"


def test_of_one_part_that_differs_it_is_told_which() -> None:
    calls = Calls()
    for layer in range(6):
        calls.call("norm", module=f"Net.{layer}.norm", cls="Norm")
        calls.call("mm", module=f"Net.{layer}.mlp", cls="Mlp" if layer < 2 else "Experts")
        if layer == 5:
            calls.call("mm", module=f"Net.{layer}.mlp", cls="Experts")
    (net,) = fold(calls.graph).children
    assert [(item.name, item.differs) for item in net.children] == [
        ("0-1", "unlike 2-4: mlp is Mlp, not Experts"),
        ("2-4", ""),
        ("5", "unlike 2-4: in mlp, with mm"),
    ]


def test_names_of_equal_modules_may_differ_in_numbers_only() -> None:
    calls = Calls()
    x = calls.tensor()
    for name in ("q", "k", "block1", "block2"):
        x = calls.call("mm", x, module=f"Net.{name}")
    assert inside(calls) == [("Net", [("q", ["mm"]), ("k", ["mm"]), ("block1-2 x2", ["mm"])])]


def test_loops_nest() -> None:
    calls = Calls()
    x = calls.tensor()
    for _ in range(3):
        for _ in range(5):
            x = calls.call("mm", x)
            x = calls.call("add", x)
            x = calls.call("tanh", x)
        x = calls.call("norm", x)
    loop = ("net.py:1 x5", ["mm", "add", "tanh"])
    assert inside(calls) == [("net.py:1 x3", [loop, "norm"])]


def test_a_cell_called_each_step_is_a_loop_over_time_also_backward() -> None:
    calls = Calls()
    h = calls.tensor()
    steps = range(1, 101)
    for step in steps:
        # The cell's own call comes after its child's: to which of the cell's calls that belongs, numbers tell.
        gates = calls.call("mm", h, module="Cell.gates", cls="Linear", number=step)
        h = calls.call("sigmoid", gates, module="Cell", cls="Cell", number=step)
        h = calls.call("tanh", h, line=7)
    for step in reversed(steps):
        h = calls.call("tanh_backward", h, phase="backward")
        h = calls.call("sigmoid_backward", h, module="Cell", cls="Cell", number=step, phase="backward")
        h = calls.call("mm", h, module="Cell.gates", cls="Linear", number=step, phase="backward")
    forward, backward = fold(calls.graph).children
    cell = ("Cell", [("gates", ["mm"]), "sigmoid"])
    assert [outline(child) for child in forward.children] == [("net.py:1-7 x100", [cell, "tanh"])]
    cell = ("Cell", ["sigmoid_backward", ("gates", ["mm"])])
    assert [outline(child) for child in backward.children] == [("net.py:1 x100", ["tanh_backward", cell])]


def test_the_first_turn_of_a_loop_that_differs_is_told_from_its_body() -> None:
    calls = Calls()
    h = calls.tensor()
    for step in range(1, 9):
        h = calls.call("mm", h, module="Cell", cls="Cell", number=step)
        h = calls.call("add", h, module="Cell", cls="Cell", number=step) if step > 1 else h
        h = calls.call("tanh", h)
    first, loop, tanh = fold(calls.graph).children
    assert (first.name, first.differs) == ("Cell", "unlike Cell of net.py:1 x7: without add")
    assert (loop.count, tanh.name) == (7, "tanh")


def test_a_loop_over_modules_is_named_for_their_classes() -> None:
    calls = Calls()
    for number in range(0, 8, 2):
        calls.call("mm", module=f"Net.{number}", cls="Linear")
        calls.call("relu", module=f"Net.{number + 1}", cls="ReLU")
    assert inside(calls) == [("Net", [("Linear, ReLU x4", [("0", ["mm"]), ("1", ["relu"])])])]


def test_gradients_are_summed_in_the_module_of_what_is_summed() -> None:
    calls = Calls()
    x = calls.tensor()
    for layer in (2, 1, 0):
        x = calls.call("mm", x, module=f"Net.{layer}", phase="backward")
        x = calls.call("add", x, phase="backward", line=9)
    assert inside(calls) == [("Net.2-0 x3", ["mm", "add"])]


def test_a_long_loop_over_parameters_folds_over_their_shapes() -> None:
    calls = Calls()
    for size in range(1, READABLE):
        p = calls.tensor(size)
        calls.call("mul", p, size=size)
        calls.call("sqrt", p, size=size)
        calls.call("add", p, size=size)
    (loop,) = fold(calls.graph).children
    assert (loop.kind, loop.count, loop.alike) == ("loop", READABLE - 1, True)
    assert [child.name for child in loop.children] == ["mul", "sqrt", "add"]
    assert len(loop.calls) == 3 * (READABLE - 1)


def test_a_short_loop_keeps_shapes_apart() -> None:
    calls = Calls()
    for size in (1, 2, 3):
        calls.call("mul", calls.tensor(size), size=size)
        calls.call("add", calls.tensor(size), size=size)
    assert inside(calls) == ["mul", "add"] * 3


def test_a_level_too_long_to_read_is_cut_into_stretches() -> None:
    calls = Calls()
    for number in range(100):
        calls.call(f"op{number}", line=number)
    items = fold(calls.graph).children
    assert [(item.kind, item.name, len(item.calls)) for item in items] == [
        ("stretch", "net.py:0-23", 24),
        ("stretch", "net.py:24-47", 24),
        ("stretch", "net.py:48-71", 24),
        ("stretch", "net.py:72-95", 24),
        ("stretch", "net.py:96-99", 4),
    ]


def test_steps_that_come_again_are_counted() -> None:
    calls = Calls()
    for _ in range(2):
        for phase in ("forward", "optimizer"):
            for layer in range(3):
                calls.call("mm", module=f"Net.{layer}", cls="L", phase=phase)  # type: ignore[arg-type]
    assert inside(calls) == [
        ("forward", [("Net x2", [("0-2 x3", ["mm"])])]),
        ("optimizer", [("Net x2", [("0-2 x3", ["mm"])])]),
    ]


def test_a_call_that_joined_another_is_part_of_it() -> None:
    calls = Calls()
    x = calls.call("view")
    calls.call("relu", x)
    (item,) = fold(calls.graph, [1, 1]).children
    assert (item.name, item.calls) == ("relu", [1])


def test_a_module_that_is_wanted_stands_apart_with_all_around_it() -> None:
    calls = Calls()
    for layer in range(5):
        for part in range(3):
            calls.call("mm", module=f"Net.{layer}.{part}")
        calls.call("add", module=f"Net.{layer}")
    (net,) = fold(calls.graph, apart={"Net.2.1"}).children
    assert [outline(item) for item in net.children] == [
        ("0-1 x2", [("0-2 x3", ["mm"]), "add"]),
        ("2", [("0", ["mm"]), ("1", ["mm"]), ("2", ["mm"]), "add"]),
        ("3-4 x2", [("0-2 x3", ["mm"]), "add"]),
    ]
    assert [item.is_wanted for item in net.children] == [False, True, False]
    with pytest.raises(LookupError):
        fold(calls.graph, apart={"Net.9"})


def test_without_repeats_every_copy_is_an_item() -> None:
    calls = Calls()
    for layer in range(100):
        calls.call("mm", module=f"Net.{layer}")
    (net,) = fold(calls.graph, repeats=False).children
    assert [item.name for item in net.children] == [str(layer) for layer in range(100)]


def test_an_empty_run() -> None:
    assert fold(OpGraph()).children == ()


def test_every_call_is_in_one_item() -> None:
    chance = random.Random(3)
    calls = Calls()
    x = calls.tensor()
    for _ in range(2000):
        layer = chance.randrange(6)
        x = calls.call(f"op{chance.randrange(3)}", x, module=f"Net.{layer}" if layer else "")

    def leaves(item: Item) -> list[int]:
        if not item.children:
            return item.calls
        return [call for child in item.children for call in leaves(child)]

    assert sorted(leaves(fold(calls.graph))) == list(range(2000))


@pytest.mark.parametrize("irregular", [False, True])
def test_folding_grows_in_step_with_the_calls(irregular: bool) -> None:
    def seconds(size: int) -> float:
        chance = random.Random(4)
        calls = Calls()
        x = calls.tensor()
        for number in range(size):
            x = calls.call(f"op{chance.randrange(4) if irregular else number % 7}", x)
        graph = calls.graph
        graph.edges  # noqa: B018 - the dependences are the graph's work, not the folding's
        start = time.process_time()
        waiting = [fold(graph)]
        while waiting:
            waiting += waiting.pop().children
        return time.process_time() - start

    small, large = (min(seconds(size) for _ in range(2)) for size in (500, 4000))
    assert large < 8 * small * 3
