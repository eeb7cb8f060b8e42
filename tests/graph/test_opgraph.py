"""The columns as a value."""

import copy
import pickle

from tests.cost.calls import Maker, T


def test_a_graph_survives_pickling_and_copying():
    maker = Maker()
    x = T(4, 24)
    maker("aten.relu.default", x, out=T(4, 24))
    maker("aten.cat.default", [x, x], 1, out=T(4, 48))
    for again in (pickle.loads(pickle.dumps(maker.graph)), copy.deepcopy(maker.graph)):
        assert list(again) == list(maker.graph)
        assert again.edges == maker.graph.edges


def test_networkx_keeps_parallel_edges():
    maker = Maker()
    x, y = T(4), T(4)
    maker("aten.relu.default", x, out=y)
    maker("aten.add.Tensor", y, y, out=T(4))
    graph = maker.graph.to_networkx()
    assert graph.number_of_edges(0, 1) == 2
    assert graph.nodes[1]["op"].label == "add"
