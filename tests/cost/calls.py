"""Calls made by hand, so that rules are tested without running anything."""

from __future__ import annotations

import torch

from optrace.cost.profiles import Target
from optrace.graph import OpGraph, Source, Storage, TensorMeta
from optrace.graph.opgraph import HOLE, READS, WRITES, Layout
from optrace.tracing.facts import facts_of

TARGET = Target(torch=(2, 11), sm_count=132, capability=(9, 0), l2_bytes=50_000_000)


class T:
    """A tensor to be: ``T(4, 24)``, contiguous unless told; ``alias`` another T whose storage it shares."""

    def __init__(self, *shape, dtype="float32", stride=None, device="cuda:0", offset=0, alias=None):
        self.shape = shape
        self.dtype, self.device, self.offset, self.alias = dtype, device, offset, alias
        self.stride = stride or tuple(torch.empty(shape, device="meta").stride())


class Maker:
    """Builds a graph call by call: ``maker("aten.mm.default", T(4, 8), T(8, 2), out=T(4, 2))``."""

    def __init__(self):
        self.graph = OpGraph()
        self._storages: dict[int, int] = {}
        self._tensors: dict[int, int] = {}
        self._kept = []

    def __call__(self, name, *args, out=None, **kwargs):
        namespace, packet, overload = name.split(".")
        facts = facts_of(getattr(getattr(getattr(torch.ops, namespace), packet), overload))
        operands, flags = [], []

        def take(value, argument):
            template = self._template(value, operands)
            mode = (
                WRITES
                if argument in facts.out_args
                else READS | WRITES
                if argument in facts.mutates
                else READS
            )
            flags.extend([mode] * (len(operands) - len(flags)))
            return template

        arg_template = tuple(take(v, n) for v, n in zip(args, facts.arg_names, strict=False))
        kwarg_template = tuple((n, take(v, n)) for n, v in kwargs.items())
        outputs = []
        out_template = self._template(out, outputs)
        graph = self.graph
        number = graph.add_call(
            graph.add_op_facts(facts),
            graph.add_template(arg_template, kwarg_template, out_template),
            operands,
            flags,
            outputs,
            source=graph.sources.add(Source()),
        )
        return graph[number]

    def _template(self, value, found):
        if isinstance(value, T):
            found.append(self._tensor(value))
            return HOLE
        if isinstance(value, (list, tuple)):
            return tuple(self._template(item, found) for item in value)
        return value

    def _tensor(self, tensor):
        self._kept.append(tensor)
        if id(tensor) not in self._tensors:
            owner = tensor.alias or tensor
            self._kept.append(owner)
            if id(owner) not in self._storages:
                span = TensorMeta(
                    owner.shape, owner.stride, owner.dtype, owner.device, 0, 0, owner.offset, 0
                ).nbytes
                self._storages[id(owner)] = self.graph.add_storage(Storage(span, owner.device))
            layout = self.graph.layouts.add(Layout(tensor.shape, tensor.stride, tensor.dtype, tensor.device))
            self._tensors[id(tensor)] = self.graph.add_tensor(
                layout, self._storages[id(owner)], tensor.offset
            )
        return self._tensors[id(tensor)]


#: Ops with a rule that a version of torch took out: ``torch.cholesky``, for ``torch.linalg.cholesky``.
_GONE_SINCE = {"aten.cholesky": (2, 14)}


def gone() -> set[str]:
    """Those that the installed torch has no more."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return {name for name, since in _GONE_SINCE.items() if version >= since}
