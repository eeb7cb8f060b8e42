"""A profile of this machine's host, measured: what each class of call takes, untraced, less the Python around it.

The Python around a call is timed by the tracer's own clock, as it is in any trace, so that both add up to what the call
takes when nobody watches. Cases are timed in turns, since the speed of a host drifts within seconds, and each turn in
another order: what disturbs a host may come back as often as a turn does. A loop over one call finds all that it needs in
the processor's caches, so networks are timed besides.
"""

from __future__ import annotations

import platform
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from time import perf_counter, perf_counter_ns

import msgspec
import numpy as np
import torch

from optrace.cost.host import (
    FIRST_OF_OP,
    FIRST_OF_PASS,
    LATER,
    dispatched_as,
    dispatched_us,
    firsts,
    further_ops,
    host_class,
    modules_entered,
)
from optrace.cost.host_profile import Between, HostClass, HostProfile, slowdown
from optrace.cost.profiles import Target, this_host_key
from optrace.cost.rules import work_of
from optrace.cost.works import Works
from optrace.graph import OpGraph, Phase
from optrace.graph.columns import Bools, Floats
from optrace.graph.nouns import PHASES
from optrace.measuring.calibration.host_calls import Call, Case, cases, networks, training_step
from optrace.measuring.machine import processor
from optrace.measuring.steady import (
    Timing,
    calm,
    goes_backward,
    timed,
    timed_warm,
    undisturbed,
    undisturbed_loop_us,
)
from optrace.tracing import Session
from optrace.tracing.clock import reference_loop_us
from optrace.tracing.gaps import Gaps, typical

#: Turns through all cases, and calls of each in a turn.
_TURNS, _CALLS = 18, 100
#: Calls of a case that are recorded, for the Python around them.
_RECORDED = 20
#: Training steps before what passes between their calls is timed, and timed ones.
_WARM_STEPS, _STEPS = 3, 24
#: Calls of a class in networks that say what they take there.
_FEW = 8
#: Classes of calls that networks make in an optimizer or to wait, if at all.
_NOT_IN_NETWORKS = frozenset({"foreach", "wait", "allocation", "view"})
#: No call passes the dispatcher in less.
_LEAST_US = 0.05
#: Tensors of a list: as many as ``_foreach_add_`` puts into one launch.
_LIST = 64


@dataclass(frozen=True, slots=True)
class _Timed:
    """Microseconds of a case untraced, the Python in it, its launches, how many of its calls are of its class (``each``)
    and how many are not, and the ops that its calls are made of besides one each."""

    kind: HostClass
    us: float
    python_us: float
    launches: int
    each: int
    others: int
    further: int = 0


def calibrate_host(session: Session, target: Target) -> HostProfile:
    """Time this host, about half a minute. ``session`` is on a GPU; ``target`` says what rules need of it."""
    device = session.device
    _warm_up()
    single = torch.ones(64, device=device)
    many = [torch.ones(8, device=device) for _ in range(_LIST)]
    grown, plain = torch.ones(64, device=device, requires_grad=True), torch.ones(64, device=device)
    flags, first = plain > 0, single[0]
    named = {f"{case.kind}.{case.name}": case for case in cases(device)}
    special: dict[str, Call] = {
        "one chunk": lambda: torch._foreach_add_([single], 1.0),
        "bare launch": partial(torch._C._cuda_sleep, 1),
        "no launch": single.dim,
        "list": lambda: torch._foreach_add_(many, 1.0),
        "new list": lambda: torch._foreach_add(many, 1.0),
        "no grad": lambda: torch.mul(plain, 2.0),
        "grad": lambda: torch.mul(grown, 2.0),
        "composed": lambda: torch.masked_fill(plain, flags, 1.0),
        "kernel": lambda: single.add_(1.0),
        "kernel and wait": lambda: (single.add_(1.0), first.item()),
    }
    calls = {name: case.call for name, case in named.items()} | special
    took, loop = _time(calls, {name: _CALLS // case.each for name, case in named.items()})
    # A kernel that does nothing, launched past the dispatcher, less getting from Python to it.
    launch = max(took["bare launch"] - took["no launch"], 0.1)
    timed = [_look_at(session, target, case, took[name]) for name, case in named.items()]
    one_op = _dispatch([row for row in timed if row.kind in ("view", "elementwise")], launch)
    plain_python = _look_at(
        session, target, Case("elementwise", "composed", special["composed"]), took["composed"]
    )
    composed = max(plain_python.us - plain_python.python_us - one_op["elementwise"] - 2 * launch, 0.0)
    dispatch = _dispatch(timed, launch, composed)
    autograd = _rounded(took["grad"] - took["no grad"])
    between_calls = _between_calls(session, target, loop, autograd)
    copied = dispatch["copy"] + launch
    host = HostProfile(
        key=this_host_key(),
        name=f"{processor()}, {torch.get_num_threads()} threads",
        python_us=round(between_calls.python_us, 2),
        between=between_calls.between,
        autograd_us=autograd,
        dispatch_us=dispatch["elementwise"],
        view_us=dispatch["view"],
        launch_us=_rounded(launch),
        # The kernel before is waited for as well: what it takes to begin, and the host to hear of its end.
        sync_us=_rounded(took["kernel and wait"] - took["kernel"] - copied),
        queue_depth=_queue_depth(device),
        class_us={kind: us for kind, us in dispatch.items() if kind not in ("view", "elementwise")},
        list_output_us=_rounded((took["new list"] - took["list"]) / _LIST),
        list_item_us=_rounded((took["list"] - took["one chunk"]) / (_LIST - 1)),
        composed_us=_rounded(composed),
        backward_us=_rounded(between_calls.backward_us),
        python_loop_us=round(loop, 3),
        source=f"optrace calibrate, torch {torch.__version__}, Python {platform.python_version()}",
        measured=True,
    )
    found = [_watched(session, target, host, step) for step in networks(session.device).values()]
    watched = [network for network in found if network is not None]
    inferring = [network for network in watched if not network.trains]
    host = msgspec.structs.replace(
        host,
        # Behind a long step it takes longer, but that is little of it.
        synchronize_us=_rounded(min((one.synchronize_us for one in inferring), default=0.0)),
        network_us=network_us(inferring, host, "forward"),
        network_training_us=network_us([one for one in watched if one.trains], host, "forward"),
        network_backward_us=network_us(watched, host, "backward"),
    )
    return msgspec.structs.replace(host, **first_us(watched, host))


@dataclass(frozen=True, slots=True)
class Watched:
    """A network's step: a synchronize behind it; of each call its class, its phase, its rank among
    ``optrace.cost.host.firsts``, what loops say of it and what it takes of the untraced step (``inside_us``), microseconds:
    as large a share as of the watched one (``optrace.tracing.gaps.typical``)."""

    synchronize_us: float
    kinds: tuple[HostClass, ...]
    phases: tuple[Phase, ...]
    firsts: tuple[int, ...]
    loop_us: Floats
    inside_us: Floats

    @property
    def trains(self) -> bool:
        return "backward" in self.phases

    def calls(self) -> Iterator[tuple[HostClass, Phase, int, float]]:
        """Of each call its class, its phase, its rank among ``firsts``, and the microseconds that it takes longer
        than in a loop."""
        longer_us = (self.inside_us - self.loop_us).tolist()
        return zip(self.kinds, self.phases, self.firsts, longer_us, strict=True)


def network_us(networks: Iterable[Watched], host: HostProfile, phase: Phase) -> dict[HostClass, float]:
    """What a call of each class takes longer in this phase of networks than ``host``, timed in loops, says, the first of
    each op left out; of a class of which they have too few, what calls that launch take longer on average."""
    longer: dict[HostClass, list[float]] = {}
    for network in networks:
        for kind, of, first, us in network.calls():
            if of == phase and first == LATER:
                longer.setdefault(kind, []).append(us)
    found = {kind: statistics.fmean(us) for kind, us in longer.items() if len(us) >= _FEW}
    launching = [us for kind, each in longer.items() if kind not in _NOT_IN_NETWORKS for us in each]
    usual = statistics.fmean(launching) if launching else 0.0
    for kind in ("elementwise", *host.class_us):
        if kind not in _NOT_IN_NETWORKS:
            found.setdefault(kind, usual)
    # At least a view's way through the dispatcher is left.
    return {
        kind: round(max(us, host.view_us - host.dispatch_of(kind)), 2) for kind, us in sorted(found.items())
    }


def first_us(networks: Sequence[Watched], host: HostProfile) -> dict[str, float | None]:
    """What the first call of a pass and of an op take longer than ``host`` says of a call of their class in a network;
    None in training where no network says."""

    def longer(rank: int, *, trains: bool) -> float | None:
        found = [
            us - host.longer_in_networks(kind, phase, trains=trains)
            for network in networks
            if network.trains == trains
            for kind, phase, first, us in network.calls()
            if first == rank
        ]
        return _rounded(statistics.fmean(found)) if found else None

    return {
        "first_of_op_us": longer(FIRST_OF_OP, trains=False) or 0.0,
        "first_of_pass_us": longer(FIRST_OF_PASS, trains=False) or 0.0,
        "first_of_op_training_us": longer(FIRST_OF_OP, trains=True),
        "first_of_pass_training_us": longer(FIRST_OF_PASS, trains=True),
    }


def _watched(session: Session, target: Target, host: HostProfile, step: Call) -> Watched | None:
    """Time a step untraced and watched, and see what its calls are. None where it made other calls each time it was
    watched than when it was recorded."""
    (issued_us, synchronize_us), graph, runs = _untraced_and_watched(
        session, step, host.python_loop_us or 1.0
    )
    watched = typical(graph, runs, issued_us)
    if watched is None:
        return None
    calls = [
        (node.facts.packet, len(node.inputs), len(node.outputs), work_of(node, target)) for node in graph
    ]
    columns = graph.columns()
    return Watched(
        synchronize_us=synchronize_us,
        kinds=tuple(dispatched_as(packet, work) for packet, *_, work in calls),
        phases=tuple(node.phase for node in graph),
        firsts=tuple(firsts(graph, columns, Works.of_graph(graph, columns, target)).tolist()),
        loop_us=np.array([sum(dispatched_us(*call, host)) for call in calls]),
        inside_us=np.array(watched.inside_us),
    )


def _untraced_and_watched(
    session: Session, step: Call, best_loop_us: float
) -> tuple[tuple[float, float], OpGraph, list[Gaps]]:
    """What a step takes the host untraced, and a synchronize behind it; its calls; and what passed in watched ones that
    made the same. In turns, those while the host was at its best, as at ``best_loop_us``."""
    runs: list[Gaps] = []

    def issue() -> tuple[float, float]:
        torch.cuda.synchronize()
        start = perf_counter_ns()
        step()
        issued = perf_counter_ns()
        torch.cuda.synchronize()
        return (issued - start) / 1000, (perf_counter_ns() - issued) / 1000

    def watch() -> tuple[float]:
        torch.cuda.synchronize()
        runs.append(session.time_gaps(step))
        return (len(runs) - 1,)

    for _ in range(_WARM_STEPS):
        step()
    backward = goes_backward(session.device, step)
    turns = []
    for _ in range(_STEPS):
        issued = timed_warm(issue, best_loop_us, backward)
        turns.append((issued, timed_warm(watch, best_loop_us, backward)))
    untraced, watched = (undisturbed([turn[which] for turn in turns], best_loop_us) for which in (0, 1))
    graph = _recorded(session, step)
    ops = tuple(node.op for node in graph)
    took_us = np.array([timing.us for timing in untraced])
    slower = np.array([slowdown(timing.loop_us, best_loop_us) for timing in untraced])
    issued_us, synchronize_us = np.median(took_us / slower[:, None], axis=0).tolist()
    return (
        (issued_us, synchronize_us),
        graph,
        [
            run.quicker(slowdown(timing.loop_us, best_loop_us))
            for timing in watched
            if (run := runs[int(timing.us[0])]).ops == ops
        ],
    )


def _recorded(session: Session, step: Call) -> OpGraph:
    torch.cuda.synchronize()
    session.forget()
    with session.recording():
        step()
    torch.cuda.synchronize()
    return session.graph


def _warm_up(seconds: float = 1.5) -> None:
    """Bring the processor to its working clock."""
    end = perf_counter() + seconds
    while perf_counter() < end:
        reference_loop_us(rounds=1)


def _time(calls: Mapping[str, Call], repeats: Mapping[str, int]) -> tuple[dict[str, float], float]:
    """Microseconds a call on the host: the median of turns, with nothing pending before each; and of a turn of the
    reference loop meanwhile. ``repeats``: how often in a turn, where not ``_CALLS`` times."""
    found: dict[str, list[Timing]] = {name: [] for name in calls}
    with torch.no_grad():
        for call in calls.values():
            call()
        best = undisturbed_loop_us()
        order = list(calls.items())
        for turn in range(_TURNS + 1):
            random.Random(turn).shuffle(order)
            for name, call in order:
                calm(best)
                with torch.set_grad_enabled(name == "grad"):
                    timing = timed(partial(_loop, call, repeats.get(name, _CALLS)))
                best = min(best, timing.loop_us)
                if turn:  # the first turn settles the allocator
                    found[name].append(timing)
    good = {name: undisturbed(timings, best) for name, timings in found.items()}
    return (
        {name: statistics.median(timing.us[0] for timing in timings) for name, timings in good.items()},
        statistics.median(timing.loop_us for timings in good.values() for timing in timings),
    )


def _loop(call: Call, repeats: int) -> tuple[float]:
    torch.cuda.synchronize()
    start = perf_counter_ns()
    for _ in range(repeats):
        call()
    return ((perf_counter_ns() - start) / repeats / 1000,)


def _look_at(session: Session, target: Target, case: Case, us: float) -> _Timed:
    """Record the case and see what its calls are."""

    def calls() -> None:
        for _ in range(_RECORDED):
            case.call()

    with torch.no_grad():
        calls()
        gaps = session.time_gaps(calls)
        session.forget()
        with session.recording():
            calls()
    torch.cuda.synchronize()
    graph = session.graph
    each = len(graph) // _RECORDED
    launches, further, python = 0, 0, 0.0
    for place in range(each):
        work = work_of(graph[place], target)
        launches += work.launches or 0
        further += further_ops(graph[place].facts.packet, work)
        python += min(gaps.before_us[each + place :: each])
    return _Timed(case.kind, us, python, launches, case.each, each - case.each, further)


def _dispatch(timed: Sequence[_Timed], launch_us: float, composed_us: float = 0.0) -> dict[HostClass, float]:
    """A call's dispatch by class: the median of its cases, less their Python, launches, further ops and views; at least what
    a view takes, whose way through the dispatcher every call shares."""
    views = [row for row in timed if row.kind == "view"]
    view_us = max(statistics.median(row.us - row.python_us for row in views), _LEAST_US)
    found: dict[HostClass, list[float]] = {}
    for row in timed:
        rest = row.us - row.python_us - row.launches * launch_us - row.others * view_us
        rest -= row.further * composed_us
        found.setdefault(row.kind, []).append(max(rest / row.each, view_us))
    return {kind: _rounded(statistics.median(values)) for kind, values in found.items()}


@dataclass(frozen=True, slots=True)
class _Passed:
    """Microseconds before calls: the mean outside of a backward pass and in one, and outside by place."""

    python_us: float
    backward_us: float
    between: Between


def _between_calls(session: Session, target: Target, loop_us: float, autograd_us: float) -> _Passed:
    """What passes before the calls of training steps, at the host's best speed: of an untraced step as much as of a
    watched one."""
    step = training_step(session.device)
    (issued_us, _), graph, runs = _untraced_and_watched(session, step, loop_us)
    share = issued_us / statistics.fmean(run.took_us for run in runs)
    before_us = np.array([run.before_us for run in runs]).mean(axis=0) * share
    return passed(graph, target, before_us, autograd_us)


def passed(graph: OpGraph, target: Target, before_us: Floats, autograd_us: float) -> _Passed:
    """What passed before the calls of a training step (``before_us``, a call each), by place; ``autograd_us`` of it,
    where a call is recorded for a backward pass, is the C++ of autograd."""
    columns = graph.columns()
    backward, optimizer = (columns.phase == PHASES.index(phase) for phase in ("backward", "optimizer"))
    forward = ~(backward | optimizer)
    first = np.arange(columns.calls) == 0
    first_of_optimizer = optimizer & ~np.concatenate(([False], optimizer[:-1]))
    attention = np.array(
        [host_class(node.facts.packet, work_of(node, target)) == "attention" for node in graph],
        dtype=np.bool_,
    )
    entered = modules_entered(graph, columns)
    own = before_us - np.where(columns.autograd, autograd_us, 0.0)

    def mean(of: Bools) -> float:
        return float(own[of].mean()) if of.any() else 0.0

    inside = forward & ~first & ~attention
    call_us = mean(inside & (entered == 0))
    into = inside & (entered > 0)
    module_us = float((own[into] - call_us).sum() / max(entered[into].sum(), 1))
    between = {
        "call_us": call_us,
        "module_us": module_us,
        "attention_us": mean(forward & attention) - call_us,
        "step_us": mean(first),
        "optimizer_us": mean(optimizer & ~first_of_optimizer),
        "optimizer_step_us": mean(first_of_optimizer),
    }
    return _Passed(
        float(before_us[~backward].mean()),
        float(before_us[backward].mean()),
        Between(**{name: _rounded(us) for name, us in between.items()}),
    )


def _queue_depth(device: str, most: int = 8192) -> int:
    """How many launches are taken while the device is busy, before one has to wait."""
    x = torch.ones(64, device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)  # type: ignore[no-untyped-call]  # torch leaves it so; cycles: about a quarter of a second
    for number in count():
        start = perf_counter()
        x.add_(1.0)
        if perf_counter() - start > 0.02 or number >= most:
            torch.cuda.synchronize()
            return number
    raise AssertionError  # ``count`` does not end


def _rounded(us: float) -> float:
    return round(max(us, 0.0), 2)
