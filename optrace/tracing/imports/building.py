"""From what a trace says of its calls to a graph: overloads, tensors, outputs that the trace leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from optrace.graph import Mark, OpFacts, OpGraph, TraceInfo
from optrace.graph.opgraph import HOLE, READS, WRITES
from optrace.tracing.facts import facts_of
from optrace.tracing.imports.identities import Identities
from optrace.tracing.imports.overloads import find_overload, plain, template, unknown_facts
from optrace.tracing.imports.seen import SeenCall, SeenRun, SeenTensor, SeenValue


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that a call returns: ``of`` is the place among its inputs of the one whose bytes it shows, ``same``
    says that it is that one."""

    tensor: SeenTensor
    of: int | None = None
    same: bool = False


def build(run: SeenRun, program: str) -> OpGraph:
    """The graph of a run."""
    device = "cuda:0" if run.device else "cpu"
    graph = OpGraph(TraceInfo(program=program, mode=run.kind))
    graph.marks += [Mark("step", call) for call in run.step_starts]
    tensors = Identities(graph, device)
    lost: Counter[str] = Counter()
    answers: dict[object, list[_Made] | None] = {}
    for call in run.calls:
        op = find_overload(call.op, call.overload, call.args)
        facts = unknown_facts(call.op) if op is None else facts_of(op)
        where = _device_of(call, facts, device) if run.timed else device
        _add(graph, tensors, call, op, facts, where, answers, lost)
    tensors.finish()
    graph.info = TraceInfo(
        program=program,
        mode=run.kind,
        steps=max(1, len(run.step_starts)),
        notes=tuple(run.notes),
        incomplete=(*run.left_out, *_doubts(tensors.guesses, lost)),
    )
    return graph


def _doubts(guesses: int, lost: Counter[str]) -> list[str]:
    doubts = []
    if guesses:
        doubts.append(
            "a profiler's trace names no tensors: which call made an argument is guessed by its layout, and so are "
            "memory and what stays in L2"
        )
    doubts += [f"what {op} returns is not known ({count} calls)" for op, count in sorted(lost.items())]
    return doubts


def _add(
    graph: OpGraph,
    tensors: Identities,
    call: SeenCall,
    op: torch._ops.OpOverload | None,
    facts: OpFacts,
    device: str,
    answers: dict[object, list[_Made] | None],
    lost: Counter[str],
) -> None:
    number = len(graph)
    given = [list(_tensors(value)) for value in call.args]
    names = facts.arg_names if op is not None else ("",) * len(given)
    flags = [_flags(facts, name) for name, found in zip(names, given, strict=False) for _ in found]
    inputs_seen = [tensor for found in given for tensor in found][: len(flags)]
    inputs = tensors.inputs(inputs_seen, [bool(flag & WRITES) for flag in flags], call.phase, device, number)
    if call.outputs is not None:
        held = {tensor.storage for tensor in inputs_seen}
        outputs = [
            tensors.output(tensor, number, fresh=tensor.storage not in held and not facts.is_view)
            for tensor in call.outputs
        ]
    else:
        layouts = tuple(_seen(graph, tensor) for tensor in inputs)
        key = (facts.name, layouts, repr(call.args))
        if key not in answers:
            answers[key] = None if op is None else _inferred(op, call.args, layouts)
        made = answers[key]
        if made is None and _returns_tensors(op):
            lost[facts.name] += 1
        to_host = any("DtoH" in launch.name for launch in call.launches)
        where = "cpu" if to_host else device
        outputs = [
            inputs[one.of]
            if one.same and one.of is not None
            else tensors.output(
                one.tensor, number, of=None if one.of is None else inputs[one.of], device=where
            )
            for one in made or ()
        ]
    args, kwargs = template(op, call.args)
    graph.add_call(
        graph.add_op_facts(facts),
        graph.add_template(args, kwargs, _out(op, len(outputs))),
        inputs,
        flags,
        outputs,
        source=graph.sources.add(call.source),
        module=-1 if call.module is None else graph.module_calls.add(call.module),
        phase=call.phase,
        stream=call.launches[0].stream if call.launches else 0,
        autograd=call.autograd,
    )


def _device_of(call: SeenCall, facts: OpFacts, device: str) -> str:
    """Where a call's new tensors are. A profiler does not say: one that launched nothing and yet computes is the CPU's."""
    if device == "cpu" or call.launches or facts.is_view:
        return device
    return device if facts.label.startswith(("empty", "new_empty", "resize", "set_", "detach")) else "cpu"


def _flags(facts: OpFacts, name: str) -> int:
    if name in facts.out_args:
        return WRITES
    return WRITES | READS if name in facts.mutates else READS


def _out(op: torch._ops.OpOverload | None, count: int) -> object:
    returns = [] if op is None else op._schema.returns
    if count == 1 and (op is None or (len(returns) == 1 and str(returns[0].type) == "Tensor")):
        return HOLE
    return (HOLE,) * count if count else None


def _returns_tensors(op: torch._ops.OpOverload | None) -> bool:
    return op is None or any("Tensor" in str(one.type) for one in op._schema.returns)


def _tensors(value: SeenValue) -> list[SeenTensor]:
    if isinstance(value, SeenTensor):
        return [value]
    if isinstance(value, tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def _seen(graph: OpGraph, number: int) -> SeenTensor:
    meta = graph.tensor(number)
    return SeenTensor(meta.shape, meta.stride, meta.dtype, meta.device, None, meta.offset)


def _inferred(
    op: torch._ops.OpOverload, args: Sequence[SeenValue], inputs: Sequence[SeenTensor]
) -> list[_Made] | None:
    """What a call returns, by running it on tensors without memory; None where that cannot be told from layouts."""
    metas = [
        torch.empty_strided(t.shape, t.stride, dtype=getattr(torch, t.dtype), device="meta") for t in inputs
    ]
    supply = iter(metas)
    positional: list[object] = []
    named: dict[str, object] = {}
    for argument, value in zip(op._schema.arguments, args, strict=False):
        real = _real(value, str(argument.real_type), supply)
        if argument.name == "device":
            real = torch.device("meta")
        elif argument.name == "pin_memory":
            real = None
        elif real is None and argument.has_default_value():
            real = argument.default_value  # a profiler leaves texts out
        if argument.kwarg_only:
            named[argument.name] = real
        else:
            positional.append(real)
    try:
        with torch.no_grad():
            returned = op(*positional, **named)
    except Exception:  # shape functions raise what they like at values that a trace leaves out
        return None
    found = returned if isinstance(returned, tuple | list) else [returned]
    if facts_of(op).packet == "aten.convolution":
        found = [_as_cudnn_lays(tensor, metas) for tensor in found]
    return [_made(tensor, metas, inputs) for tensor in found if isinstance(tensor, torch.Tensor)]


def _as_cudnn_lays(tensor: torch.Tensor, metas: Sequence[torch.Tensor]) -> torch.Tensor:
    """Channels last where input or weight are, which torch's own shape function says of CUDA tensors only."""
    if tensor.dim() == 4 and any(
        meta.dim() == 4 and not meta.is_contiguous() and meta.is_contiguous(memory_format=torch.channels_last)
        for meta in metas[:2]
    ):
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _made(tensor: torch.Tensor, metas: Sequence[torch.Tensor], inputs: Sequence[SeenTensor]) -> _Made:
    of = next(
        (
            place
            for place, meta in enumerate(metas)
            if tensor.untyped_storage()._cdata == meta.untyped_storage()._cdata
        ),
        None,
    )
    offset = int(tensor.storage_offset()) + (0 if of is None else inputs[of].offset)
    seen = SeenTensor(
        tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."), offset=offset
    )
    return _Made(seen, of, same=of is not None and tensor is metas[of])


def _real(value: SeenValue, type: str, supply: Iterator[torch.Tensor]) -> object:
    """An argument as torch takes it."""
    if isinstance(value, SeenTensor):
        return next(supply)
    if isinstance(value, tuple):
        return [_real(item, type, supply) for item in value]
    known = plain(value, type)
    if isinstance(known, str) and known.startswith("torch."):
        return getattr(torch, known.removeprefix("torch."))
    return known
