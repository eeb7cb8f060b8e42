"""Host time of a call: the tax that eager execution pays before the device can start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from optrace.cost.host_profile import HostClass, HostProfile
from optrace.cost.work import KernelKind, Work
from optrace.cost.works import Works
from optrace.graph import Columns, OpGraph
from optrace.graph.columns import Bools, Floats, Ints
from optrace.graph.nouns import PHASES


@dataclass(frozen=True, slots=True)
class HostTime:
    """The four layers of a call's host time, microseconds. They add."""

    python_us: float = 0.0
    autograd_us: float = 0.0
    dispatch_us: float = 0.0
    launch_us: float = 0.0

    @property
    def total_us(self) -> float:
        return self.python_us + self.autograd_us + self.dispatch_us + self.launch_us

    @property
    def before_launch_us(self) -> float:
        """Up to the first launch call."""
        return self.python_us + self.autograd_us + self.dispatch_us

    def __add__(self, other: HostTime) -> HostTime:
        return HostTime(
            self.python_us + other.python_us,
            self.autograd_us + other.autograd_us,
            self.dispatch_us + other.dispatch_us,
            self.launch_us + other.launch_us,
        )


#: Ops whose host class does not follow from the kind of their kernels.
_CLASSES: Mapping[HostClass, tuple[str, ...]] = {
    "allocation": (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
    ),
    "addmm": ("addmm", "baddbmm", "_addmm_activation"),
    "normalization": (
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "cudnn_batch_norm",
        "_batch_norm_with_update",
        "_batch_norm_no_update",
        "_fused_rms_norm",
    ),
    "normalization_backward": (
        "native_layer_norm_backward",
        "native_group_norm_backward",
        "native_batch_norm_backward",
        "cudnn_batch_norm_backward",
        "batch_norm_backward",
        "_fused_rms_norm_backward",
    ),
    "convolution_backward": ("convolution_backward",),
    "attention_backward": (
        "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention_backward",
        "_flash_attention_backward",
        "_efficient_attention_backward",
    ),
    "copy": ("_to_copy",),
    "wait": ("_local_scalar_dense",),
}
#: The class of calls of a packet, for those that are not told by their kernels.
CLASS_OF: Mapping[str, HostClass] = {f"aten.{op}": kind for kind, ops in _CLASSES.items() for op in ops}

_CLASS_OF_KIND: Mapping[KernelKind, HostClass] = {
    "none": "view",
    "elementwise": "elementwise",
    "reduction": "reduction",
    "gather": "gather",
    "transpose": "copy",
    "foreach": "foreach",
    "matmul": "matmul",
    "convolution": "convolution",
    "attention": "attention",
    "copy": "copy",
    "other": "elementwise",
}

#: Kinds whose launches all come from one op: a chunk of a list, a part of a product, a layout copy and the kernel behind
#: it. A pointwise call with several is made of as many ops.
_ONE_OP = frozenset({"foreach", "matmul", "attention", "convolution", "reduction"})
#: Calls that make products and pointwise ops in turns: a time step of a recurrent net, the layers of an encoder.
_PRODUCTS_IN_TURNS = frozenset(
    {
        "aten._cudnn_rnn",
        "aten._cudnn_rnn_backward",
        "aten._native_multi_head_attention",
        "aten._transformer_encoder_layer_fwd",
    }
)


def host_class(packet: str, work: Work) -> HostClass:
    """What a call of ``packet`` (``aten.add``) makes the host do."""
    return CLASS_OF.get(packet) or _CLASS_OF_KIND[work.kind]


@dataclass(frozen=True, slots=True)
class HostColumns:
    """``HostTime`` by call; ``first_us`` is what of its dispatch is due to its being the first of its pass or op."""

    python_us: Floats
    autograd_us: Floats
    dispatch_us: Floats
    launch_us: Floats
    first_us: Floats

    def __getitem__(self, call: int) -> HostTime:
        return HostTime(
            float(self.python_us[call]),
            float(self.autograd_us[call]),
            float(self.dispatch_us[call]),
            float(self.launch_us[call]),
        )

    @property
    def total_us(self) -> Floats:
        return self.before_launch_us + self.launch_us

    @property
    def before_launch_us(self) -> Floats:
        return self.python_us + self.autograd_us + self.dispatch_us


def host_rows(times: Iterable[HostTime]) -> HostColumns:
    """Host times that are known call by call."""
    rows = [(time.python_us, time.autograd_us, time.dispatch_us, time.launch_us, 0.0) for time in times]
    return HostColumns(*np.array(rows, dtype=np.float64).reshape(-1, 5).T)


def host_columns(
    graph: OpGraph, columns: Columns, works: Works, host: HostProfile, *, python_scale: float = 1.0
) -> HostColumns:
    """Python between calls, autograd, dispatcher, launches.

    ``python_scale``: this host's Python against that of the machine that traced. The backward pass is walked by the
    C++ engine: what passes between its calls counts as autograd.
    """
    backward = columns.phase == PHASES.index("backward")
    of_autograd = np.where(backward | columns.autograd, host.autograd_us, 0.0)
    timed = ~np.isnan(columns.python_us)
    between = np.where(timed, columns.python_us * python_scale, 0.0)
    if host.backward_us is not None:
        untimed = np.where(backward, host.backward_us, of_autograd)
    else:
        untimed = of_autograd
    estimated = estimated_python_us(graph, columns, works, host)
    autograd = np.where(timed, np.where(backward, between, np.minimum(between, of_autograd)), untimed)
    python = np.where(timed, between - autograd, np.where(backward, 0.0, estimated))
    dispatch, launch = (
        np.array(
            [
                dispatched_us(
                    graph.facts(call).packet, len(graph.operands(call)), len(graph.outputs(call)), work, host
                )
                for call, work in zip(works.first.tolist(), works.distinct, strict=True)
            ],
            dtype=np.float64,
        )
        .reshape(-1, 2)
        .T
    )
    kinds = [
        dispatched_as(graph.facts(call).packet, work)
        for call, work in zip(works.first.tolist(), works.distinct, strict=True)
    ]
    trains = bool(backward.any())
    longer = np.array(
        [[host.longer_in_networks(kind, phase, trains=trains) for kind in kinds] for phase in PHASES],
        dtype=np.float64,
    )
    at_first = np.array([host.longer_at_first(phase, trains=trains) for phase in PHASES])
    first = at_first[columns.phase, firsts(graph, columns, works)]
    dispatch = dispatch[works.of] + longer[columns.phase, works.of] + first
    return HostColumns(python, autograd, dispatch, launch[works.of], first)


#: What a call is in its pass (forward, backward, optimizer) of a step: one of many, the first of its op, the first of all.
LATER, FIRST_OF_OP, FIRST_OF_PASS = range(3)


def firsts(graph: OpGraph, columns: Columns, works: Works) -> Ints:
    """For each call ``FIRST_OF_PASS``, ``FIRST_OF_OP`` or ``LATER``, among those that launch."""
    step = np.searchsorted(graph.step_starts(), np.arange(columns.calls), side="right")
    passes = step * len(PHASES) + columns.phase
    ops = int(columns.op.max(initial=0)) + 1
    calls = np.flatnonzero(_launching(works))
    found = np.full(columns.calls, LATER, dtype=np.int64)
    for rank, key in ((FIRST_OF_OP, passes * ops + columns.op), (FIRST_OF_PASS, passes)):
        found[calls[np.unique(key[calls], return_index=True)[1]]] = rank
    return found


def estimated_python_us(graph: OpGraph, columns: Columns, works: Works, host: HostProfile) -> Floats:
    """Python before each call of a forward pass or an optimizer, where nobody timed it.

    Where calls do not say which module ran, one that launches is taken to have entered one, and a view none: views
    are methods that are called between the layers. In a step with an optimizer gradients are dropped before the first
    call, a parameter after the other; else that call is one like the rest.
    """
    between = host.between
    if between is None:
        return np.full(columns.calls, host.python_us)
    places = _places_known(graph)
    entered = modules_entered(graph, columns) if places else _launching(works).astype(np.int64)
    optimizer = columns.phase == PHASES.index("optimizer")
    chooses = np.array(
        [
            host_class(graph.facts(call).packet, work) == "attention"
            for call, work in zip(works.first.tolist(), works.distinct, strict=True)
        ],
        dtype=np.bool_,
    )[works.of]
    found = np.where(
        optimizer,
        between.optimizer_us,
        between.call_us + between.module_us * entered + np.where(chooses, between.attention_us, 0.0),
    )
    if places:
        starts = np.array(graph.step_starts())
        of_step = np.searchsorted(starts, np.flatnonzero(optimizer), side="right") - 1
        found[starts[np.unique(of_step)]] = between.step_us
    found[optimizer & ~np.concatenate(([False], optimizer[:-1]))] = between.optimizer_step_us
    return found


def _launching(works: Works) -> Bools:
    """Each call that launches, or may."""
    return np.array([work.launches != 0 for work in works.distinct], dtype=np.bool_)[works.of]


def _places_known(graph: OpGraph) -> bool:
    """Whether calls say where they come from: those of a record do not."""
    return len(graph.module_calls) > 0 or any(source.frames for source in graph.sources.rows)


def modules_entered(graph: OpGraph, columns: Columns) -> Ints:
    """For each call, the parts of its module's path that were not entered when the call before it ran; the same module
    called again is one."""
    names: dict[str, int] = {}
    path_of = [names.setdefault(module.path, len(names)) for module in graph.module_calls.rows]
    module = columns.module
    before = np.concatenate(([-1], module[:-1]))
    entered = np.zeros(columns.calls, dtype=np.int64)
    moved = np.flatnonzero((module != before) & (module >= 0))
    # Path 0 is that of a call in no module.
    path = np.array([-1, *path_of], dtype=np.int64) + 1
    pairs, of = np.unique(path[before[moved] + 1] * len(path) + path[module[moved] + 1], return_inverse=True)
    paths = ["", *names]
    parts = [_entered(paths[pair // len(path)], paths[pair % len(path)]) for pair in pairs.tolist()]
    entered[moved] = np.array(parts, dtype=np.int64)[of]
    return entered


def _entered(before: str, now: str) -> int:
    if before == now:
        return 1
    parts = now.split(".")
    if not before:
        return len(parts)
    shared = 0
    for old, new in zip(before.split("."), parts, strict=False):
        if old != new:
            break
        shared += 1
    return len(parts) - shared


def dispatched_us(
    packet: str, operands: int, outputs: int, work: Work, host: HostProfile
) -> tuple[float, float]:
    """Dispatch and launches of a call of ``packet`` with so many operands and outputs, as in a loop over it."""
    kind = dispatched_as(packet, work)
    further_us = host.composed_us
    if packet in _PRODUCTS_IN_TURNS:
        further_us = (host.dispatch_of("matmul") + host.dispatch_of("elementwise")) / 2
    dispatch = host.dispatch_of(kind) + further_ops(packet, work) * further_us
    if kind == "foreach":
        dispatch += host.list_item_us * operands
        if not packet.endswith("_"):
            dispatch += host.list_output_us * outputs
    return dispatch, (work.launches or 0) * host.launch_us


def dispatched_as(packet: str, work: Work) -> HostClass:
    """The class whose dispatch a call takes: its own, or a view's where it computes nothing."""
    kind = host_class(packet, work)
    return kind if work.launches != 0 or kind == "allocation" else "view"


def further_ops(packet: str, work: Work) -> int:
    """Ops besides the first that a call is made of: its launches after the first, where one op does not make them all."""
    if work.kind in _ONE_OP and packet not in _PRODUCTS_IN_TURNS:
        return 0
    return max((work.launches or 0) - 1, 0)


def python_scale(host: HostProfile, traced_loop_us: float | None) -> float:
    """How much longer Python takes on ``host`` than where a trace was made; 1 where either is not known."""
    if not host.python_loop_us or not traced_loop_us:
        return 1.0
    return host.python_loop_us / traced_loop_us
