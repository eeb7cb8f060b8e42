"""Host time by class of call: arithmetic on the page."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from optrace.cost.host import dispatched_us, host_class, host_columns, modules_entered, python_scale
from optrace.cost.host_profile import Between, HostProfile
from optrace.cost.profiles import pricing
from optrace.cost.rules import work_of
from optrace.cost.work import Work
from optrace.cost.works import Works
from optrace.graph import Frame, Mark, ModuleCall, Source
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
    list_output_us=1.5,
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


CONVOLUTION = (T(8, 64, 56, 56), T(64, 64, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


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
        # Two copies to channels last and the kernel, all by one op.
        ("aten.convolution.default", CONVOLUTION, T(8, 64, 56, 56), "convolution", 4.0, 3),
        # Each new tensor of a list takes memory.
        ("aten._foreach_sqrt.default", ([T(8)] * 4,), [T(8)] * 4, "foreach", 5.0 + 4 * (0.25 + 1.5), 1),
    ],
)
def test_a_call_takes_its_class_its_launches_and_its_list(name, args, out, kind, dispatch, launches):
    graph = call(name, *args, out=out)
    assert host_class(graph[0].facts.packet, work_of(graph[0], TARGET)) == kind
    time = host_time(graph)
    assert (time.python_us, time.dispatch_us, time.launch_us) == (3.0, dispatch, launches * 2.0)


@pytest.mark.parametrize("packet", ["aten._cudnn_rnn", "aten._transformer_encoder_layer_fwd"])
def test_a_call_that_makes_products_and_pointwise_ops_in_turns_takes_as_much_for_them(packet):
    work = Work(kernels=600, kind="matmul")
    assert dispatched_us(packet, 4, 1, work, HOST) == (7.0 + 599 * (7.0 + 4.0) / 2, 600 * 2.0)
    assert dispatched_us("aten.mm", 2, 1, work, HOST) == (7.0, 600 * 2.0)


def test_a_call_in_a_network_takes_longer_than_in_a_loop_and_one_of_an_optimizer_does_not():
    make = Maker()
    for _ in range(3):
        make("aten.mm.default", T(64, 64), T(64, 64), out=T(64, 64))
    make(*VIEW[:1], *VIEW[1], out=VIEW[2])
    columns = make.graph.columns()
    works = Works.of_graph(make.graph, columns, TARGET)
    host = msgspec.structs.replace(
        HOST,
        network_us={"matmul": 1.0, "view": 0.25},
        network_training_us={"matmul": 3.0},
        network_backward_us={"matmul": 5.0},
    )

    def dispatch(*phases):
        of = replace(columns, phase=np.array([PHASES.index(phase) for phase in phases]))
        return list(host_columns(make.graph, of, works, host).dispatch_us)

    assert dispatch("forward", "other", "forward", "forward") == [8.0, 8.0, 8.0, 0.5 + 0.25]
    assert dispatch("forward", "backward", "optimizer", "forward") == [10.0, 12.0, 7.0, 0.5]


def test_the_first_call_of_a_pass_and_of_an_op_takes_longer_in_each_step():
    make = Maker()
    for name in ("mm", "t", "mm", "relu", "mm", "mm", "relu"):
        if name == "mm":
            make("aten.mm.default", T(64, 64), T(64, 64), out=T(64, 64))
        elif name == "t":
            make(*VIEW[:1], *VIEW[1], out=VIEW[2])
        else:
            make("aten.relu.default", T(8), out=T(8))
    graph = make.graph
    columns = graph.columns()
    works = Works.of_graph(graph, columns, TARGET)
    host = msgspec.structs.replace(
        HOST,
        first_of_pass_us=30.0,
        first_of_op_us=10.0,
        first_of_pass_training_us=50.0,
        first_of_op_training_us=20.0,
    )

    def longer(*phases):
        of = replace(columns, phase=np.array([PHASES.index(phase) for phase in phases]))
        first, plain = (host_columns(graph, of, works, profile).dispatch_us for profile in (host, HOST))
        return list(first - plain)

    assert longer(*["forward"] * 7) == [30, 0, 0, 10, 0, 0, 0]
    assert longer(*["forward"] * 4, *["backward"] * 2, "optimizer") == [50, 0, 0, 20, 50, 0, 30]
    graph.marks += [Mark("step", 0), Mark("step", 4)]
    assert longer(*["forward"] * 7) == [30, 0, 0, 10, 30, 0, 10]
    # Of training nothing is known: as in inference.
    host = msgspec.structs.replace(host, first_of_pass_training_us=None, first_of_op_training_us=None)
    assert longer(*["forward"] * 4, *["backward"] * 3) == [30, 0, 0, 10, 30, 0, 10]


def test_a_host_that_does_not_tell_training_apart_has_one_figure_for_all():
    host = msgspec.structs.replace(HOST, network_us={"matmul": 3.0})
    for phase in ("forward", "backward"):
        assert host.longer_in_networks("matmul", phase, trains=True) == 3.0


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


BETWEEN = Between(
    call_us=5.0, module_us=6.0, attention_us=25.0, step_us=60.0, optimizer_us=4.0, optimizer_step_us=200.0
)
VIEW, CALL = ("aten.t.default", (T(4, 8),), T(8, 4)), ("aten.add.Tensor", (T(8), T(8)), T(8))
HEADS = T(2, 4, 32, 64, dtype="bfloat16")
ATTENTION = (
    "aten._scaled_dot_product_flash_attention.default",
    (HEADS, HEADS, HEADS, 0.0, False, False),
    (HEADS, T(2, 4, 32)),
)


@pytest.mark.parametrize(
    ("calls", "python_us"),
    [
        # Entered: m and m.a, m.b, nothing on the way back to m, m again by its own name.
        (
            [("forward", path, *VIEW) for path in ("", "m.a", "m.a", "m.b", "m")],
            [5, 5 + 2 * 6, 5, 5 + 6, 5],
        ),
        ([("forward", path, *CALL) for path in ("m.a", "", "m.a")], [5 + 2 * 6, 5, 5 + 2 * 6]),
        ([("forward", "m", *VIEW), ("forward", "m", *ATTENTION)], [5 + 6, 5 + 25]),
        (
            [("forward", "m", *CALL), ("backward", "m", *CALL), *[("optimizer", "", *CALL)] * 2],
            [60.0, 0.0, 200.0, 4.0],
        ),
    ],
)
def test_python_that_nobody_timed_goes_by_the_place(calls, python_us):
    make = Maker()
    for _, _, name, args, out in calls:
        make(name, *args, out=out)
    graph = make.graph
    for number, (phase, path, *_) in enumerate(calls):
        module = graph.module_calls.add(ModuleCall(path, "M", 1)) if path else -1
        graph.set_origin(number, source=graph.source_of(number), module=module, phase=phase)
    columns = graph.columns()
    works = Works.of_graph(graph, columns, TARGET)
    host = msgspec.structs.replace(HOST, between=BETWEEN)
    assert list(host_columns(graph, columns, works, host).python_us) == python_us
    # With no such numbers in the profile, the mean.
    assert list(host_columns(graph, columns, works, HOST).python_us) == [
        0.0 if phase == "backward" else 3.0 for phase, *_ in calls
    ]


def test_what_stands_before_a_step_with_an_optimizer_is_paid_where_each_step_begins():
    make = Maker()
    for _ in range(5):
        make(CALL[0], *CALL[1], out=CALL[2])
    graph = make.graph
    for number in range(5):
        module = graph.module_calls.add(ModuleCall("m", "M", 1))
        phase = "optimizer" if number == 4 else "forward"
        graph.set_origin(number, source=graph.source_of(number), module=module, phase=phase)
    graph.marks += [
        Mark("run", 0),
        Mark("run", 2),
        Mark("step", 2),
        Mark("step", 5),
    ]  # steps of two and of three
    columns = graph.columns()
    works = Works.of_graph(graph, columns, TARGET)
    host = msgspec.structs.replace(HOST, between=BETWEEN)
    assert list(host_columns(graph, columns, works, host).python_us) == [5 + 6, 5, 60.0, 5, 200.0]


def test_where_no_module_is_known_calls_that_launch_are_taken_for_modules_and_views_for_none():
    make = Maker()
    for name, args, out in (CALL, VIEW, ATTENTION, CALL, CALL):
        make(name, *args, out=out)
    columns = replace(
        make.graph.columns(),
        phase=np.array(
            [PHASES.index(phase) for phase in ("other", "other", "other", "optimizer", "optimizer")]
        ),
    )
    works = Works.of_graph(make.graph, columns, TARGET)
    host = msgspec.structs.replace(HOST, between=BETWEEN)
    found = host_columns(make.graph, columns, works, host).python_us
    assert list(found) == [5.0 + 6.0, 5.0, 5.0 + 6.0 + 25.0, 200.0, 4.0]


def test_the_same_module_called_again_is_entered_again():
    make = Maker()
    for _ in range(3):
        make(CALL[0], *CALL[1], out=CALL[2])
    graph = make.graph
    for number, times in enumerate((1, 2, 2)):
        module = graph.module_calls.add(ModuleCall("m.a", "M", times))
        graph.set_origin(number, source=graph.source_of(number), module=module, phase="forward")
    assert list(modules_entered(graph, graph.columns())) == [2, 1, 0]


def test_a_trace_of_a_function_has_places_too_and_a_record_has_none():
    graph = call(*CALL[:1], *CALL[1], out=CALL[2])
    host = msgspec.structs.replace(HOST, between=BETWEEN)
    works = Works.of_graph(graph, graph.columns(), TARGET)
    # A call that launches is taken for a module's.
    assert list(host_columns(graph, graph.columns(), works, host).python_us) == [5.0 + 6.0]
    source = graph.sources.add(Source((Frame("model.py", 1, "f", True),)))
    graph.set_origin(0, source=source, module=-1, phase="forward")
    assert list(host_columns(graph, graph.columns(), works, host).python_us) == [5.0]
