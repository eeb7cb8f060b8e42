"""The table of rules, and the schema's default for every op that has none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.tensor_iterator import broadcasts, kernels_over
from optrace.cost.work import FREE, Access, KernelKind, Pass, Work
from optrace.graph import OpNode, TensorMeta, Value

Rule = Callable[[OpNode, Target], Work]

#: By overload (``aten.sum.dim_IntList``) or by packet (``aten.sum``, for all its overloads).
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Price these ops with the decorated function. Registering an op twice raises ``ValueError``."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has a rule already: {RULES[name].__qualname__}")
            RULES[name] = function
        return function

    return register


def work_of(node: OpNode, target: Target) -> Work:
    """What a call makes the GPU do: by its rule, else by its schema. What the CPU does launches and moves nothing
    here; its arithmetic counts."""
    if node.is_view:
        return FREE
    if on_host(node):
        work = _on_device(node, target)
        return replace(
            FREE,
            flops=work.flops,
            matmul_flops=work.matmul_flops,
            math_dtype=work.math_dtype,
            source="schema" if work.source == "unknown" else work.source,
        )
    return _on_device(node, target)


def _on_device(node: OpNode, target: Target) -> Work:
    """A call's work if its tensors are on a device, wherever they are."""
    if on_host(node):
        node = _with(node, lambda t: replace(t, device="cuda:0") if t.device == "cpu" else t)
    if node.facts.out_args:
        node = _resized(node)
    function = RULES.get(node.op) or RULES.get(node.facts.packet)
    if function is not None:
        work = function(node, target)
        return work if work.source == "unknown" else replace(work, source="rule")
    return schema_default(node)


def on_host(node: OpNode) -> bool:
    """No tensor of the call is on a device: the CPU does it."""
    return all(tensor.device in ("cpu", "meta") for tensor in (*node.inputs, *node.outputs))


def _resized(node: OpNode) -> OpNode:
    """The call with each ``out=`` as it comes out: one of another shape is resized before it is written."""
    results = {tensor.storage: tensor for tensor in node.outputs}
    resized = {
        tensor.id: results[tensor.storage]
        for tensor, reads in zip(node.inputs, node.reads, strict=True)
        if not reads and tensor.storage in results and results[tensor.storage].shape != tensor.shape
    }
    return _with(node, lambda tensor: resized.get(tensor.id, tensor)) if resized else node


def _with(node: OpNode, change: Callable[[TensorMeta], TensorMeta]) -> OpNode:
    """The call on other tensors."""

    def changed(value: Value) -> Value:
        if isinstance(value, TensorMeta):
            return change(value)
        return tuple(map(changed, value)) if isinstance(value, tuple) else value

    return replace(
        node,
        args=tuple(map(changed, node.args)),
        kwargs={name: changed(value) for name, value in node.kwargs.items()},
        out=changed(node.out),
        inputs=tuple(map(change, node.inputs)),
        outputs=tuple(map(change, node.outputs)),
    )


def schema_default(node: OpNode) -> Work:
    """One launch that reads the inputs and writes the outputs; free where there is nothing to write.

    A pointwise op does one FLOP an output element. Any other op's arithmetic is not known; nor are the launches of an
    op that is not torch's own, or that tells the host something of a tensor's values.
    """
    if "pointwise" in node.facts.tags:
        return streaming(
            node, kernels=pointwise_kernels(node), flops=elements_written(node), kind="elementwise"
        )
    work = streaming(node, flops=None, matmul_flops=None)
    tells_the_host = bool(inputs_read(node)) and not node.outputs and not any(node.writes)
    if tells_the_host or node.facts.name.partition(".")[0] not in ("aten", "prims", "quantized"):
        return replace(work, kernels=None, source="unknown")
    return work


def streaming(
    node: OpNode,
    *,
    kernels: int = 1,
    memsets: int = 0,
    flops: int | None = 0,
    matmul_flops: int | None = 0,
    kind: KernelKind = "other",
    reads: Iterable[Access] | None = None,
    writes: Iterable[Access] | None = None,
    math_dtype: str | None = None,
    host_wait: bool = False,
    memcpys: int = 0,
    rereads: Iterable[Access] = (),
    scratch: tuple[int, ...] = (),
    reserved: int = 0,
    spilled: int = 0,
    passes: Iterable[Pass] = (),
) -> Work:
    """Work that passes once over its operands; nothing at all where nothing is written (empty tensors)."""
    to_read = tuple(inputs_read(node) if reads is None else reads)
    to_write = tuple(outputs_written(node) if writes is None else writes)
    if not to_write and not host_wait:
        return FREE
    dtypes = [access.tensor.dtype for access in (*to_read, *to_write)]
    return Work(
        kernels=kernels,
        memcpys=memcpys,
        memsets=memsets,
        reads=to_read,
        writes=to_write,
        flops=flops,
        matmul_flops=matmul_flops,
        kind=kind,
        math_dtype=math_dtype or (dtypes[0] if dtypes else "float32"),
        host_wait=host_wait,
        rereads=tuple(rereads),
        scratch=scratch,
        reserved=reserved,
        spilled=spilled,
        passes=tuple(passes),
    )


def pointwise_kernels(node: OpNode) -> int:
    """Launches of a TensorIterator kernel that passes over all that the call reads and writes."""
    written = [access.tensor for access in outputs_written(node)]
    if not written:
        return 0
    shape = max((tensor.shape for tensor in written), key=lambda sizes: (math.prod(sizes), len(sizes)))
    read = [access.tensor for access in inputs_read(node) if broadcasts(access.tensor.shape, shape)]
    return kernels_over(shape, *read, *(tensor for tensor in written if tensor.shape == shape))


def whole(tensor: TensorMeta) -> Access:
    """All elements of a tensor, each once."""
    return Access(tensor, tensor.nbytes)


def inputs_read(node: OpNode) -> list[Access]:
    """The device tensors that the call reads; one that stands twice in the arguments is read once."""
    seen: dict[int, Access] = {}
    for tensor, reads in zip(node.inputs, node.reads, strict=True):
        if reads and on_device(tensor) and tensor.nbytes:
            seen.setdefault(tensor.id, whole(tensor))
    return list(seen.values())


def outputs_written(node: OpNode) -> list[Access]:
    """The device tensors that the call writes: its new outputs, and inputs that it changes."""
    changed = [t for t, writes in zip(node.inputs, node.writes, strict=True) if writes]
    storages = {tensor.storage for tensor in node.inputs}
    new = [tensor for tensor in node.outputs if tensor.storage not in storages]
    seen = {tensor.id: whole(tensor) for tensor in (*changed, *new) if on_device(tensor) and tensor.nbytes}
    return list(seen.values())


def elements_written(node: OpNode) -> int:
    """Elements of all tensors that the call writes."""
    return sum(access.tensor.numel for access in outputs_written(node))


def elements_read(node: OpNode) -> int:
    """Elements of all tensors that the call reads."""
    return sum(access.tensor.numel for access in inputs_read(node))


def on_device(tensor: TensorMeta) -> bool:
    return tensor.device not in ("cpu", "meta")
