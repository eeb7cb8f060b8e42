"""Pricing of whole runs: those that do nothing, and what pricing costs as they grow."""

import time

import pytest

from optrace.cost.profiles import pricing
from optrace.graph import OpGraph
from optrace.report import report
from tests.cost.calls import Maker, T


def chain(length, side):
    """``length`` products and as many sums; a product dies with the sum that reads it."""
    make = Maker()
    weight, value = T(side, side), T(side, side)
    for _ in range(length):
        product, total = T(side, side), T(side, side)
        made = make("aten.mm.default", value, weight, out=product)
        read = make("aten.add.Tensor", product, value, out=total)
        make.graph.add_free(made.outputs[0].storage, read.id)
        value = total
    return make.graph


def test_a_run_of_no_calls_costs_nothing():
    made = report(OpGraph(), pricing("h200", None))
    assert (made.timeline.wall_us, made.totals["launches"].value, made.priced.memory.peak) == (0.0, 0, 0)


@pytest.mark.parametrize("side", [32, 2048])  # all of it stays in the L2; a tensor is 16 MiB: four fill it
def test_the_time_to_price_a_run_grows_with_its_calls(side):
    priced_as = pricing("h200", None)

    def seconds(length):
        graph = chain(length, side)
        best = float("inf")
        for _ in range(2):
            start = time.process_time()  # of this process: others may be busy
            report(graph, priced_as)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(160) < 6 * seconds(40)
