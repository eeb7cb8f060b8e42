"""What the CPU side of eager execution takes: the numbers of a machine, in microseconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from optrace.graph import Phase

#: What a call makes the host do, as far as its time goes.
HostClass = Literal[
    "view",
    "allocation",
    "elementwise",
    "reduction",
    "normalization",
    "normalization_backward",
    "matmul",
    "addmm",
    "convolution",
    "convolution_backward",
    "attention",
    "attention_backward",
    "gather",
    "foreach",
    "copy",
    "wait",
]

#: What tells calls apart, which goes where one number for all replaces it.
ONE_FOR_ALL: Mapping[str, Any] = {
    "class_us": {},
    "network_us": {},
    "network_training_us": {},
    "network_backward_us": {},
    "first_of_pass_us": 0.0,
    "first_of_op_us": 0.0,
    "first_of_pass_training_us": None,
    "first_of_op_training_us": None,
}

#: How much of a change of the reference loop's speed reaches what the host really does, on a logarithmic scale. Steps of
#: one program, timed on an H200's host while its loop took once and twice its best: 1.05 to 1.6 times as long, most of
#: them 1.3 times (docs/accuracy.md).
_OF_THE_LOOP = 0.5


def slowdown(loop_us: float, best_loop_us: float) -> float:
    """How much longer a host takes while a turn of the reference loop takes ``loop_us`` than at its best."""
    return math.pow(loop_us / best_loop_us, _OF_THE_LOOP)


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What passes on the host before a call whose Python was not timed, by what a trace knows of the place. Microseconds.

    ``call_us`` before a call of the forward pass, ``module_us`` besides for each module entered since the call before
    (a part of its path each), ``attention_us`` besides where fused attention chooses its kernel; ``optimizer_us`` before
    a call of an optimizer. In a step with an optimizer ``step_us`` stands before the first call instead, and
    ``optimizer_step_us`` before the optimizer's first. Fields of older profiles are passed over; a misspelt one is missed,
    since all are required.
    """

    call_us: float
    module_us: float
    attention_us: float
    step_us: float
    optimizer_us: float
    optimizer_step_us: float

    def scaled(self, by: float) -> Between:
        """All of it ``by`` times as long."""
        return Between(**{name: getattr(self, name) * by for name in self.__struct_fields__})


class HostProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One machine. A call's host time is the sum of four layers.

    - Python: what the trace timed before the call, scaled by ``python_loop_us`` (a turn of the reference loop of
      ``optrace.tracing.clock``) of both machines; where it timed nothing ``between``, or ``python_us`` if the profile has
      none or the trace does not say which modules ran.
    - Autograd: ``autograd_us`` of it; ``backward_us`` before each call of a backward pass whose time was not taken.
    - Dispatch: ``dispatch_us``, or that of the call's class in ``class_us``, without its launches; ``view_us`` where
      nothing is computed; ``list_item_us`` for each tensor of a list, ``list_output_us`` for each new one that it makes.
      All of it as in a loop over the call, as an optimizer's loops are; outside of an optimizer ``network_us`` of the
      call's class besides, since between a network's other calls it finds less in the processor's caches; in a step that
      goes backward ``network_training_us`` and ``network_backward_us`` instead, if there are any: what it keeps for later
      takes new memory. A pass of a step (forward, backward, optimizer) finds the code of none of its ops in the caches:
      its first launching call costs ``first_of_pass_us`` besides, the first of each other op ``first_of_op_us``; where a
      step goes backward, in its forward and backward pass ``first_of_pass_training_us`` and ``first_of_op_training_us``.
    - Launch: ``launch_us`` each; one after the first of a call that is made of several ops costs ``composed_us`` besides.

    ``sync_us`` is what a wait costs beyond the waiting, ``synchronize_us`` the synchronize after a step;
    ``queue_depth`` launches may be pending before the host has to wait.
    A compiled function costs ``compiled_call_us`` (the wrapper's entry), or ``compiled_backward_us`` where it is a
    backward pass (autograd's wrapper) and ``compiled_optimizer_us`` where it is an optimizer's, ``compiled_input_us`` for
    each tensor that it is given (guards, checks of its layout), and ``compiled_kernel_us`` for each generated kernel:
    round numbers, not measured by calibration.
    """

    key: str
    name: str
    python_us: float
    autograd_us: float
    dispatch_us: float
    view_us: float
    launch_us: float
    sync_us: float
    queue_depth: int
    source: str
    class_us: dict[HostClass, float] = {}
    network_us: dict[HostClass, float] = {}
    network_training_us: dict[HostClass, float] = {}
    network_backward_us: dict[HostClass, float] = {}
    between: Between | None = None
    first_of_pass_us: float = 0.0
    first_of_op_us: float = 0.0
    first_of_pass_training_us: float | None = None
    first_of_op_training_us: float | None = None
    list_item_us: float = 0.0
    list_output_us: float = 0.0
    composed_us: float = 0.0
    synchronize_us: float = 0.0
    backward_us: float | None = None
    compiled_call_us: float = 30.0
    compiled_input_us: float = 4.0
    compiled_backward_us: float = 400.0
    compiled_optimizer_us: float = 700.0
    compiled_kernel_us: float = 20.0
    python_loop_us: float | None = None
    measured: bool = False

    def at_speed(self, loop_us: float | None) -> HostProfile:
        """This host while a turn of the reference loop takes ``loop_us``; as it is where either is not known."""
        if not loop_us or not self.python_loop_us:
            return self
        slower = slowdown(loop_us, self.python_loop_us)
        times = {
            name: us * slower
            for name in self.__struct_fields__
            if name.endswith("_us") and isinstance(us := getattr(self, name), float)
        }
        by_class = {
            name: {kind: us * slower for kind, us in classes.items()}
            for name in self.__struct_fields__
            if isinstance(classes := getattr(self, name), dict)
        }
        return msgspec.structs.replace(
            self,
            **{**times, **by_class, "python_loop_us": loop_us},
            between=None if self.between is None else self.between.scaled(slower),
        )

    def with_one_dispatch(self, dispatch_us: float) -> HostProfile:
        """This host with one dispatch time for all classes of calls."""
        return msgspec.structs.replace(self, dispatch_us=dispatch_us, **ONE_FOR_ALL)

    def longer_in_networks(self, kind: HostClass, phase: Phase, *, trains: bool) -> float:
        """What a call of this class takes longer in a network than in a loop; ``trains``: in a step that goes backward."""
        if phase == "optimizer":
            return 0.0
        training = self.network_backward_us if phase == "backward" else self.network_training_us
        return (training if trains and training else self.network_us).get(kind, 0.0)

    def longer_at_first(self, phase: Phase, *, trains: bool) -> tuple[float, float, float]:
        """What a call takes longer by its rank among ``optrace.cost.host.firsts``: later, first of its op, of its pass."""
        of_op_us, of_pass_us = self.first_of_op_us, self.first_of_pass_us
        if trains and phase != "optimizer":
            of_op_us = of_op_us if self.first_of_op_training_us is None else self.first_of_op_training_us
            of_pass_us = (
                of_pass_us if self.first_of_pass_training_us is None else self.first_of_pass_training_us
            )
        return 0.0, of_op_us, of_pass_us

    def dispatch_of(self, kind: HostClass) -> float:
        """Host time of a call of this class, without its launches and its Python."""
        if kind == "view":
            return self.view_us
        return self.class_us.get(kind, self.dispatch_us)
