"""What a host's calibration makes of its timings: no GPU, times made up."""

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch

from optrace.cost.host import dispatched_as, host_class
from optrace.cost.host_profile import Between
from optrace.cost.profiles import find_host
from optrace.cost.rules import work_of
from optrace.graph import ModuleCall
from optrace.measuring.calibration import host as calibration
from optrace.measuring.calibration.files import profile_text
from optrace.measuring.calibration.host import (
    Watched,
    _dispatch,
    _Timed,
    _watched,
    first_us,
    network_us,
    passed,
)
from optrace.measuring.calibration.host_calls import cases, networks, training_step
from optrace.measuring.steady import Timing
from optrace.tracing import Session, open_session
from optrace.tracing.gaps import Gaps
from tests.cost.calls import TARGET, Maker, T


@pytest.fixture(scope="module")
def recorded():
    """Each case's calls, as the stand-in for a GPU records them."""
    found = []
    with open_session("fake", gpu="h200") as session:
        named = cases("cuda")
        with session.recording():
            for case in named:
                before = len(session.graph)
                case.call()
                found.append((case, range(before, len(session.graph))))
    return [(case, [session.graph[call] for call in calls]) for case, calls in found]


def test_each_case_is_of_its_class_and_has_views_at_most_besides(recorded):
    for case, nodes in recorded:
        kinds = Counter(host_class(node.facts.packet, work_of(node, TARGET)) for node in nodes)
        assert kinds.pop(case.kind) == case.each, case.name
        assert set(kinds) <= {"view"}, case.name


def test_every_class_that_has_a_time_of_its_own_is_timed(recorded):
    kinds = {case.kind for case, _ in recorded}
    assert kinds >= {"convolution", "normalization", "attention", "matmul", "addmm", "foreach", "copy"}


def test_dispatch_is_what_python_launches_and_views_leave():
    rows = [
        _Timed("view", us=3.0, python_us=2.0, launches=0, each=1, others=0),
        _Timed("elementwise", us=12.0, python_us=3.0, launches=1, each=1, others=0),
        # Eight convolutions of two launches each in 8 x 30 us, and a view.
        _Timed("convolution", us=240.0, python_us=8 * 4.0, launches=16, each=8, others=1),
    ]
    assert _dispatch(rows, launch_us=5.0) == {
        "view": 1.0,
        "elementwise": 12.0 - 3.0 - 5.0,
        "convolution": round((240 - 32 - 16 * 5 - 1) / 8, 2),
    }


def test_dispatch_is_without_the_further_ops_of_a_call():
    """A convolution of three launches: the last two cost an op each besides."""
    rows = [
        _Timed("view", us=3.0, python_us=2.0, launches=0, each=1, others=0),
        _Timed("convolution", us=40.0, python_us=4.0, launches=3, each=1, others=0, further=2),
    ]
    assert _dispatch(rows, launch_us=5.0, composed_us=4.0)["convolution"] == 40 - 4 - 3 * 5 - 2 * 4


def test_what_passed_before_calls_by_place():
    heads = T(2, 4, 32, 64, dtype="bfloat16")
    calls = [
        ("forward", "m", "aten.add.Tensor", (T(8), T(8)), T(8), 70.0),
        ("forward", "m", "aten.add.Tensor", (T(8), T(8)), T(8), 6.0),
        ("forward", "m.a.b", "aten.add.Tensor", (T(8), T(8)), T(8), 6.0 + 10.0),
        (
            "forward",
            "m.a.b",
            "aten._scaled_dot_product_flash_attention.default",
            (heads, heads, heads, 0.0, False, False),
            (heads, T(2, 4, 32)),
            30.0,
        ),
        ("backward", "m", "aten.mul.Tensor", (T(8), T(8)), T(8), 11.0),
        ("backward", "m", "aten.mul.Tensor", (T(8), T(8)), T(8), 13.0),
        ("optimizer", "", "aten.add.Tensor", (T(8), T(8)), T(8), 200.0),
        ("optimizer", "", "aten.add.Tensor", (T(8), T(8)), T(8), 4.0),
    ]
    make = Maker()
    for _, _, op, args, out, _ in calls:
        make(op, *args, out=out)
    graph = make.graph
    for number, (phase, path, *_) in enumerate(calls):
        module = graph.module_calls.add(ModuleCall(path, "M", 1)) if path else -1
        graph.set_origin(number, source=graph.source_of(number), module=module, phase=phase)
    found = passed(graph, TARGET, np.array([us for *_, us in calls]), autograd_us=2.0)
    assert found.between == Between(
        call_us=6.0,
        module_us=5.0,  # two parts of a path in 10 us
        attention_us=24.0,
        step_us=70.0,
        optimizer_us=4.0,
        optimizer_step_us=200.0,
    )
    assert found.backward_us == 12.0
    assert found.python_us == pytest.approx((70 + 6 + 16 + 30 + 200 + 4) / 6)


def test_the_training_step_has_all_the_places():
    with open_session("fake", gpu="h200") as session:
        step = training_step("cuda")
        step()
        with session.recording():
            step()
    graph = session.graph
    phases = Counter(graph.phase(call) for call in range(len(graph)))
    assert min(phases[phase] for phase in ("forward", "backward", "optimizer")) > 2
    assert any("scaled_dot_product" in graph.facts(call).packet for call in range(len(graph)))


HOST = msgspec.structs.replace(
    find_host("default"),
    view_us=1.0,
    dispatch_us=3.0,
    class_us={"matmul": 6.0, "gather": 4.0, "foreach": 2.0},
)


def watched(*calls, phase="forward"):
    """A network of calls: class, what loops say of each, what it takes of the step; 1 and 2 where it is the first of its
    op and of the pass."""
    kinds, loop_us, inside_us, firsts = zip(*[(*call, 0)[:4] for call in calls], strict=True)
    return Watched(0.0, kinds, (phase,) * len(calls), firsts, np.array(loop_us), np.array(inside_us))


def test_calls_of_a_class_that_networks_do_not_make_take_longer_as_those_that_launch():
    network = watched(
        *[("matmul", 9.0, 15.0)] * 8, *[("view", 1.0, 5.0)] * 8, *[("reduction", 5.0, 10.0)] * 4
    )
    usual = (8 * (15.0 - 9.0) + 4 * (10.0 - 5.0)) / 12
    assert network_us([network], HOST, "forward") == {
        "elementwise": round(usual, 2),
        "gather": round(usual, 2),
        "matmul": 6.0,
        "view": 4.0,
    }


def test_networks_of_two_kinds_count_call_by_call_and_each_phase_by_itself():
    slow = watched(*[("matmul", 9.0, 15.0)] * 12)
    quick = watched(*[("matmul", 9.0, 10.0)] * 4)
    back = watched(*[("matmul", 9.0, 29.0)] * 8, phase="backward")
    networks = [slow, quick, back]
    assert network_us(networks, HOST, "forward")["matmul"] == (12 * 6.0 + 4 * 1.0) / 16
    assert network_us(networks, HOST, "backward")["matmul"] == 20.0


def test_first_calls_are_told_from_the_others_of_their_class():
    """4 us a product longer than in a loop, 10 and 30 longer still where it is the first."""
    inferring = watched(
        ("matmul", 9.0, 9 + 4 + 30.0, 2),
        ("matmul", 9.0, 9 + 4 + 12.0, 1),
        ("gather", 9.0, 9 + 4 + 8.0, 1),
        *[("matmul", 9.0, 13.0)] * 8,
    )
    back = watched(("matmul", 9.0, 9 + 6 + 50.0, 2), *[("matmul", 9.0, 15.0)] * 8, phase="backward")
    longer = network_us([inferring], HOST, "forward")
    assert (longer["matmul"], longer["gather"]) == (4.0, 4.0)
    host = msgspec.structs.replace(
        HOST, network_us=longer, network_backward_us=network_us([back], HOST, "backward")
    )
    assert first_us([inferring, back], host) == {
        "first_of_op_us": 10.0,
        "first_of_pass_us": 30.0,
        "first_of_op_training_us": None,
        "first_of_pass_training_us": 50.0,
    }


def test_a_call_in_a_network_is_not_quicker_than_a_view():
    network = watched(*[("matmul", 6.0, 0.1)] * 8)
    assert network_us([network], HOST, "forward")["matmul"] == 1.0 - 6.0  # a view's way is left of it


def test_a_watched_network_is_its_median_at_the_hosts_best_speed(monkeypatch):
    """Issued in 12 us while a turn of the loop took 4 us; at 1 us it takes half as long, of which each call has the share
    that it has of the 17 us while watched."""

    def timed_warm(measure, *_):
        return Timing((12.0, 8.0), 4.0) if measure.__name__ == "issue" else Timing(measure(), 1.0)

    def time_gaps(_session, step):
        step()
        return Gaps(("aten.relu_.default", "aten.t.default"), (1.5, 0.5), 2.0, (9.0, 4.0))

    monkeypatch.setattr(calibration, "timed_warm", timed_warm)
    monkeypatch.setattr(Session, "time_gaps", time_gaps)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    x = torch.ones(2, 2)
    with open_session("cpu", device="cpu") as session:
        host = msgspec.structs.replace(HOST, python_loop_us=1.0)
        found = _watched(session, TARGET, host, lambda: x.relu_().t())
    assert found.synchronize_us == 4.0
    assert not found.trains
    assert list(found.inside_us) == pytest.approx([9.0 * 6 / 17, 4.0 * 6 / 17])
    assert found.kinds == ("view", "view")  # on a CPU nothing launches
    assert found.phases == ("forward", "forward")
    assert list(found.loop_us) == [1.0, 1.0]


def test_what_passes_between_calls_of_a_training_step_is_a_share_of_an_untraced_one(monkeypatch):
    """Watched, 8 us pass before a call and it takes 12; untraced the step takes half as long: 4 us passed."""
    x = torch.ones(2, 2)
    monkeypatch.setattr(calibration, "training_step", lambda _device: lambda: x.relu_())
    monkeypatch.setattr(
        calibration,
        "timed_warm",
        lambda measure, *_: (
            Timing((10.0, 1.0), 1.0) if measure.__name__ == "issue" else Timing(measure(), 1.0)
        ),
    )
    monkeypatch.setattr(Session, "time_gaps", lambda *_: Gaps(("aten.relu_.default",), (8.0,), 0.0, (12.0,)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(calibration, "passed", lambda _graph, _target, before_us, _autograd_us: before_us)
    with open_session("cpu", device="cpu") as session:
        assert list(calibration._between_calls(session, TARGET, 1.0, autograd_us=0.0)) == [4.0]


def test_a_network_that_makes_other_calls_while_watched_says_nothing(monkeypatch):
    monkeypatch.setattr(calibration, "timed_warm", lambda measure, *_: Timing(measure(), 1.0))
    monkeypatch.setattr(Session, "time_gaps", lambda *_: Gaps(("aten.relu_.default",), (1.0,), 1.0, (9.0,)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    x = torch.ones(2, 2)
    with open_session("cpu", device="cpu") as session:
        assert _watched(session, TARGET, HOST, lambda: x.relu_().t()) is None
    assert network_us([], HOST, "forward") == {"elementwise": 0.0, "gather": 0.0, "matmul": 0.0}


def test_every_turn_times_every_case_in_another_order(monkeypatch):
    """What disturbs a host as often as a turn comes would disturb the same cases each time."""
    made = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(calibration, "calm", lambda _best: None)
    names = ["a", "b", "c", "d", "grad"]
    took, best = calibration._time(
        {name: lambda name=name: made.append((name, torch.is_grad_enabled())) for name in names},
        dict.fromkeys(names, 1),
    )
    assert took.keys() == set(names)
    assert min(took.values()) > 0 < best
    assert {name for name, grad in made[len(names) :] if grad} == {"grad"}
    timed = [name for name, _ in made[len(names) :]]
    turns = [timed[first : first + len(names)] for first in range(0, len(timed), len(names))]
    assert len(turns) == calibration._TURNS + 1
    assert {frozenset(turn) for turn in turns} == {frozenset(names)}
    assert len({tuple(turn) for turn in turns}) > calibration._TURNS // 2


def test_networks_have_the_calls_of_networks_in_use():
    found = {}
    with open_session("fake", gpu="h200") as session:
        for name, step in networks("cuda").items():
            session.forget()
            with session.recording():
                step()
            found[name] = Counter(
                dispatched_as(node.facts.packet, work_of(node, TARGET)) for node in session.graph
            )
    assert found["convolutional, inference"]["convolution"] == 52
    assert found["convolutional, backward"]["normalization_backward"] == 48
    assert found["transformer, inference"]["attention"] == 12
    assert found["transformer, backward"]["attention_backward"] == 12
    assert sum(found["perceptron, inference"].values()) < 20
    # Each class that a network has has enough calls to be told from these.
    every = sum(found.values(), Counter())
    assert {kind for kind, calls in every.items() if calls < calibration._FEW} <= {"copy", "gather"}


def test_a_calibrated_profile_from_before_networks_were_timed_is_read(tmp_path):
    text = profile_text(msgspec.structs.replace(HOST, key="old", network_us={}))
    file = tmp_path / "old.toml"
    file.write_text("\n".join(line for line in text.splitlines() if "network_us" not in line))
    assert find_host(str(file)).network_us == {}
