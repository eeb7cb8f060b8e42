"""What a host's calibration makes of its timings: no GPU, times made up."""

from collections import Counter

import msgspec
import numpy as np
import pytest
import torch

from optrace.cost.host import host_class
from optrace.cost.host_profile import Between
from optrace.cost.profiles import find_host
from optrace.cost.rules import work_of
from optrace.graph import ModuleCall
from optrace.measuring.calibration import host as calibration
from optrace.measuring.calibration.host import _dispatch, _in_programs, _slowed, _Timed, passed
from optrace.measuring.calibration.host_calls import cases, networks, training_step
from optrace.measuring.steady import Timing
from optrace.tracing import open_session
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


def test_what_calls_take_in_programs_is_what_loops_say_times_the_share():
    host = find_host("xeon-vm")
    slowed = _slowed(host, 2.0)
    assert (slowed.launch_us, slowed.dispatch_us) == (
        round(2 * host.launch_us, 2),
        round(2 * host.dispatch_us, 2),
    )
    assert slowed.class_us["matmul"] == round(2 * host.class_us["matmul"], 2)
    assert (slowed.python_us, slowed.autograd_us, slowed.sync_us) == (
        host.python_us,
        host.autograd_us,
        host.sync_us,
    )


def test_networks_mix_convolutions_and_attention():
    with open_session("fake", gpu="h200") as session:
        steps = networks("cuda")
        with session.recording(), torch.no_grad():
            for step in steps:
                step()
    ops = Counter(node.facts.packet for node in session.graph)
    assert ops["aten.convolution"] == ops["aten.cudnn_batch_norm"] == 24
    assert ops["aten._scaled_dot_product_cudnn_attention"] == 8


def test_the_share_is_what_is_left_of_a_step_without_its_python(monkeypatch):
    """12 us a step of which 4 are Python, where loops say 2: a share of 4; and 10 us, of which 4: 3."""
    issued = iter(
        [([Timing((12.0,), 1.0)], [Timing((4.0,), 1.0)]), ([Timing((20.0,), 2.0)], [Timing((4.0,), 1.0)])]
    )
    monkeypatch.setattr(calibration, "networks", lambda _device: [lambda: torch.ones(2).relu_()] * 2)
    monkeypatch.setattr(calibration, "_issued_and_between", lambda _session, _step: next(issued))
    monkeypatch.setattr(
        calibration, "dispatched_us", lambda *_: (1.5, 0.5) if _[0] == "aten.relu_" else (0.0, 0.0)
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with open_session("cpu", device="cpu") as session:
        host = msgspec.structs.replace(find_host("xeon-vm"), python_loop_us=1.0)
        assert _in_programs(session, TARGET, host) == pytest.approx((4 + 3) / 2)
