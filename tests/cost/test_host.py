"""Host time by class of call: arithmetic on the page."""

from dataclasses import replace

import numpy as np
import pytest

from optrace.cost.host import host_class, host_columns, python_scale
from optrace.cost.host_profile import HostProfile
from optrace.cost.profiles import pricing
from optrace.cost.rules import work_of
from optrace.cost.works import Works
from optrace.graph.nouns import PHASES
from tests.cost.calls import TARGET, Maker, T

HOST = HostProfile(
    key="h",
    name="a host",
    python_us=3.0,
    autograd_us=1.0,
    dispatch_us=4.0,
    view_us=0.5,
    launch_us=2.0,
    sync_us=0.0,
    queue_depth=1000,
    source="made up",
    class_us={"matmul": 7.0, "foreach": 5.0, "allocation": 1.5},
    list_item_us=0.25,
    composed_us=6.0,
    python_loop_us=2.0,
)


def call(name, *args, out=None):
    """A graph of one call."""
    make = Maker()
    make(name, *args, out=out)
    return make.graph


def host_time(graph, python_scale=1.0, **columns):
    """The host's time of a graph's only call, with some of its columns replaced."""
    known = replace(graph.columns(), **columns)
    works = Works.of_graph(graph, known, TARGET)
    return host_columns(graph, known, works, HOST, python_scale=python_scale)[0]


@pytest.mark.parametrize(
    ("name", "args", "out", "kind", "dispatch", "launches"),
    [
        ("aten.add.Tensor", (T(8), T(8)), T(8), "elementwise", 4.0, 1),
        ("aten.mm.default", (T(4096, 4096), T(4096, 4096)), T(4096, 4096), "matmul", 7.0, 1),
        ("aten.t.default", (T(4, 8),), T(8, 4), "view", 0.5, 0),
        ("aten.empty_like.default", (T(8),), T(8), "allocation", 1.5, 0),
        ("aten._foreach_add_.Scalar", ([T(8)] * 4, 1), None, "foreach", 5.0 + 4 * 0.25, 1),
        # Two ops in one call: a copy, then a fill.
        ("aten.masked_fill.Scalar", (T(8), T(8, dtype="bool"), 1.0), T(8), "elementwise", 4.0 + 6.0, 2),
    ],
)
def test_a_call_takes_its_class_its_launches_and_its_list(name, args, out, kind, dispatch, launches):
    graph = call(name, *args, out=out)
    assert host_class(graph[0].facts.packet, work_of(graph[0], TARGET)) == kind
    time = host_time(graph)
    assert (time.python_us, time.dispatch_us, time.launch_us) == (3.0, dispatch, launches * 2.0)


def test_python_that_was_timed_stands_for_the_estimate_and_is_scaled():
    graph = call("aten.add.Tensor", T(8), T(8), out=T(8))
    time = host_time(graph, 2.0, python_us=np.array([10.0]), autograd=np.array([True]))
    # 10 us on a machine that is twice as fast: 20, of which autograd has its own.
    assert (time.python_us, time.autograd_us) == (20.0 - 1.0, 1.0)


def test_between_calls_of_the_backward_pass_runs_no_python():
    graph = call("aten.add.Tensor", T(8), T(8), out=T(8))
    time = host_time(graph, python_us=np.array([6.0]), phase=np.array([PHASES.index("backward")]))
    assert (time.python_us, time.autograd_us) == (0.0, 6.0)


@pytest.mark.parametrize(("traced", "scale"), [(1.0, 2.0), (4.0, 0.5), (None, 1.0)])
def test_hosts_are_compared_by_the_reference_loop(traced, scale):
    assert python_scale(HOST, traced) == scale


def test_one_dispatch_time_for_all_replaces_those_of_the_classes():
    host = pricing("h200", "default", dispatch_us=9.0).host
    assert {host.dispatch_of(kind) for kind in ("matmul", "elementwise", "allocation")} == {9.0}
    assert host.dispatch_of("view") != 9.0
