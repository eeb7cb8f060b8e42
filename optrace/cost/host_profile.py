"""What the CPU side of eager execution takes: the numbers of a machine, in microseconds."""

from __future__ import annotations

from typing import Literal

import msgspec

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

#: Times that are Python's, or are taken among it.
_PYTHON_TIMES = frozenset({"python_us", "backward_us", "python_loop_us"})

#: How much of a change of the interpreter's speed reaches the dispatcher and the driver, on a logarithmic scale. Chosen
#: among 0.3, 0.5, 0.7 and 1 by ``optrace accuracy`` on the records of docs/accuracy.md.
_BELOW_PYTHON = 0.7


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """What passes on the host before a call whose Python was not timed, by what a trace knows of the place. Microseconds.

    ``call_us`` before a call of the forward pass, ``module_us`` besides for each module entered since the call before
    (a part of its path each), ``attention_us`` besides where fused attention chooses its kernel; ``optimizer_us`` before
    a call of an optimizer. ``step_us`` is what stands before the first call of a step instead, ``optimizer_step_us`` before
    the first of its optimizer. Fields of older profiles are passed over; a misspelt one is missed, since all are required.
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
      nothing is computed; ``list_item_us`` for each tensor of a list. All of it as in a loop over the call, as an
      optimizer's loops are; outside of an optimizer ``network_us`` of the call's class besides, since between a
      network's other calls it finds less in the processor's caches.
    - Launch: ``launch_us`` each; one after the first of a call that is made of several ops costs ``composed_us`` besides.

    ``sync_us`` is what a wait costs beyond the waiting; ``queue_depth`` launches may be pending before the host has to
    wait. A compiled step costs ``compiled_call_us`` (guards, the wrapper's entry), ``compiled_backward_us`` where it goes
    backward (autograd's wrapper), ``compiled_optimizer_us`` before an optimizer (guards on its state) and
    ``compiled_kernel_us`` for each generated kernel: round numbers, not measured by calibration.
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
    between: Between | None = None
    list_item_us: float = 0.0
    composed_us: float = 0.0
    backward_us: float | None = None
    compiled_call_us: float = 200.0
    compiled_backward_us: float = 300.0
    compiled_optimizer_us: float = 1000.0
    compiled_kernel_us: float = 20.0
    python_loop_us: float | None = None
    measured: bool = False

    def at_speed(self, loop_us: float | None) -> HostProfile:
        """This host while a turn of the reference loop takes ``loop_us``; as it is where either is not known."""
        if not loop_us or not self.python_loop_us:
            return self
        slower = loop_us / self.python_loop_us
        below = slower**_BELOW_PYTHON
        times = {
            name: us * (slower if name in _PYTHON_TIMES else below)
            for name in self.__struct_fields__
            if name.endswith("_us") and isinstance(us := getattr(self, name), float)
        }
        return msgspec.structs.replace(
            self,
            **times,
            class_us={kind: us * below for kind, us in self.class_us.items()},
            network_us={kind: us * below for kind, us in self.network_us.items()},
            between=None if self.between is None else self.between.scaled(slower),
        )

    def dispatch_of(self, kind: HostClass) -> float:
        """Host time of a call of this class, without its launches and its Python."""
        if kind == "view":
            return self.view_us
        return self.class_us.get(kind, self.dispatch_us)
