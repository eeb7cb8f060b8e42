"""What repeats is replayed until its outcome repeats: the same figures as when all of it is replayed."""

from dataclasses import replace

import numpy as np
import pytest

from optrace.cost import traffic
from optrace.cost.memory import memory_use
from optrace.cost.profiles import pricing
from optrace.cost.repeats import Repeat, repeats
from optrace.cost.signatures import first_places, signatures
from optrace.cost.traffic import footprints, warm_traffic
from optrace.cost.works import Works
from optrace.graph.opgraph import READS, WRITES
from tests.cost.calls import TARGET, Maker, T

MB = 1 << 20
L2 = 50 * MB


def loop(turns, side=1024):
    """Turns of three calls on one weight, each of which frees what the turn before made; a call before and after."""
    make = Maker()
    weight, value = T(side, side), T(side, side)
    make("aten.relu.default", value, out=T(side, side))
    for _ in range(turns):
        product, total = T(side, side), T(side, side)
        made = make("aten.mm.default", value, weight, out=product)
        read = make("aten.add.Tensor", product, value, out=total)
        make.graph.add_free(made.outputs[0].storage, read.id)
        last = make("aten.mul.Tensor", weight, 0.5, out=T(side, side))
        make.graph.add_free(last.outputs[0].storage, last.id)
        make.graph.add_free(made.inputs[0].storage, last.id)
        value = total
    make("aten.relu.default", value, out=T(side, side))
    return make.graph


def test_calls_are_alike_that_a_rule_cannot_tell_apart():
    """Layouts, offsets, sizes of storages, which operands share one, what is written: each tells two calls apart."""
    make = Maker()
    x, y = T(4, 24), T(4, 24)
    first = make("aten.add.Tensor", x, y, out=T(4, 24))
    graph = make.graph
    row = graph.op_of(first.id), graph.template_of(first.id)
    flags = list(graph.operand_flags(first.id))
    make("aten.add.Tensor", y, x, out=T(4, 24))
    make("aten.add.Tensor", x, x, out=T(4, 24))
    make("aten.add.Tensor", x, T(4, 24, alias=x), out=T(4, 24))
    make("aten.add.Tensor", x, T(24), out=T(4, 24))
    graph.add_call(
        *row, graph.operands(first.id), [READS | WRITES, flags[1]], graph.outputs(first.id), source=0
    )
    assert signatures(graph.columns()).of.tolist() == [0, 0, 1, 2, 3, 4]


def test_a_loop_is_found_with_the_storages_of_a_turn():
    columns = loop(20).columns()
    (found,) = repeats(columns, signatures(columns).of)
    # Three calls a turn make three storages: the product, the sum and the scaled weight. The first turn finds a value
    # that stood before the run, so that what it frees was made by no turn: the loop is seen from behind that free.
    assert (found.period, found.storages) == (3, 3)
    assert found.end >= 1 + 3 * 19
    assert found.storages_after(found.count) - found.storages_after(0) == 3 * found.count


def test_what_differs_in_one_turn_is_no_loop_across_it():
    columns = loop(20).columns()
    kinds = signatures(columns).of.copy()
    kinds[31] = 99
    assert [(r.start <= 31 < r.end) for r in repeats(columns, kinds)] == [False, False]


def test_turns_that_use_other_storages_are_no_loop():
    """The same calls, on a new weight each time: what is new each time stood before the run and lies elsewhere."""
    make = Maker()
    for _ in range(20):
        make("aten.add.Tensor", T(64), T(64), out=T(64))
    columns = make.graph.columns()
    found = repeats(columns, signatures(columns).of)
    replayed = memory_use(columns, [()] * 20, (), found)
    assert len(replayed.replayed) == 20


def test_memory_of_a_loop_is_that_of_all_its_turns():
    columns = loop(50).columns()
    found = repeats(columns, signatures(columns).of)
    temporaries = [(3 * MB,) if call % 3 == 1 else () for call in range(columns.calls)]
    short, whole = memory_use(columns, temporaries, (), found), memory_use(columns, temporaries)
    assert len(short.replayed) < 50 < len(whole.replayed) == columns.calls
    for name in ("address", "block_bytes", "born", "live_after"):
        assert np.array_equal(getattr(short, name), getattr(whole, name)), name
    for name in ("base", "peak", "peak_call", "reserved"):
        assert getattr(short, name) == getattr(whole, name), name
    # A call that was not replayed is of the same kind as the one that stands in for it.
    kinds = signatures(columns).of
    assert np.array_equal(kinds, kinds[short.stand_in])


@pytest.mark.parametrize("side", [512, 1024, 3072])  # 1, 4 and 36 MiB a tensor, in an L2 of 50
def test_traffic_of_a_loop_is_that_of_all_its_turns(side, monkeypatch):
    graph = loop(40, side)
    columns = graph.columns()
    works = Works.of_graph(graph, columns, replace(TARGET, l2_bytes=L2))
    prints = footprints(columns, works, L2)
    temporaries = [works.distinct[number].allocated for number in works.of]
    memory = memory_use(columns, temporaries, (), repeats(columns, prints.kinds[works.of]))
    short = warm_traffic(columns, works, prints, memory, L2)
    monkeypatch.setattr(
        traffic, "_SETTLED", float("inf")
    )  # nothing settles a call: all is run through the cache
    whole = warm_traffic(columns, works, prints, memory_use(columns, temporaries), L2)
    for name in ("read", "written"):
        moved, all_moved = getattr(short, name).sum(), getattr(whole, name).sum()
        assert moved == pytest.approx(all_moved, rel=0.01, abs=MB)  # SMs change sides by call


def test_storages_after_a_turn_are_numbered_on():
    repeat = Repeat(start=5, period=3, count=4, storages=2, behind=20)
    assert [repeat.storages_after(turn) for turn in range(5)] == [12, 14, 16, 18, 20]
    assert repeat.end == 5 + 3 * 4


@pytest.mark.parametrize("width", [1, 2, 5, 9])  # by comparing, and by sorting
def test_first_places(width):
    rows = np.random.default_rng(0).integers(0, 3, (50, width))
    assert first_places(rows).tolist() == [[row.index(v) for v in row] for row in rows.tolist()]


def test_calls_are_alike_by_layout_and_by_which_tensors_are_one():
    make = Maker()
    x, y, z = T(8), T(8), T(8)
    make("aten.add.Tensor", x, y, out=T(8))
    make("aten.add.Tensor", y, z, out=T(8))  # like the first
    make("aten.add.Tensor", x, x, out=T(8))  # one tensor twice
    make("aten.add.Tensor", x, T(8, alias=x), out=T(8))  # two tensors on one storage
    make("aten.add.Tensor", x, T(8, dtype="float16"), out=T(8))  # another layout
    make("aten.mul.Tensor", x, y, out=T(8))  # another op
    assert signatures(make.graph.columns()).of.tolist() == [0, 0, 1, 2, 3, 4]


def test_a_calls_work_is_on_its_own_tensors():
    make = Maker()
    for _ in range(2):
        make("aten.add.Tensor", T(8), T(8), out=T(8))
    graph = make.graph
    works = Works.of_graph(graph, graph.columns(), TARGET)
    assert len(works.distinct) == 1
    for call in range(2):
        work, node = works.of_call(call, graph), graph[call]
        assert [access.tensor for access in work.reads] == list(node.inputs)
        assert [access.tensor for access in work.writes] == list(node.outputs)


def test_gpus_differ_in_what_the_l2_lets_through():
    """Another GPU's L2 is another run of the model over the same calls."""
    from optrace.cost.pricing import price

    graph = loop(12, 2048)  # 16 MiB a tensor
    moved = [price(graph, pricing(gpu)).costs.traffic.read.sum() for gpu in ("rtx3090", "h200")]
    assert moved[0] > moved[1]
