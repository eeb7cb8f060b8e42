"""An ``OpGraph`` as a ``torch.fx.GraphModule`` over the same ATen calls."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from optrace.graph import OpGraph, Phase
from optrace.graph.opgraph import HOLE
from optrace.tracing.fx.arguments import arguments_of, overload_of
from optrace.tracing.fx.boundary import Boundary, boundary
from optrace.tracing.fx.errors import FxError
from optrace.tracing.fx.metas import Fakes, ModuleNames, stack_trace, with_values
from optrace.tracing.fx.plan import Plan, plan
from optrace.tracing.fx.signature import Guard, Signature
from optrace.tracing.keeping import Kept

#: Where a node's and a module's meta hold what is optrace's: of a node the number of its call, at first.
META = "optrace"

_TAGS: dict[Phase, str] = {"forward": "is_forward", "backward": "is_backward"}
_READS_VALUES = frozenset({"data_dependent_output", "dynamic_output_shape"})


def graph_module(
    graph: OpGraph, kept: Kept | None = None, *, inputs: Any = None, outputs: Any = None
) -> fx.GraphModule:
    """The recorded calls, in their order, as a module; ``Trace.to_fx`` documents it.

    Raises ``FxError`` for a tensor of ``inputs`` or ``outputs`` that the trace does not know, and for a call that
    cannot be written.
    """
    steps = plan(graph, conjugated=kept.conjugated if kept is not None else ())
    names = ModuleNames(graph, kept.classes if kept is not None else {})
    edges = boundary(graph, steps, kept, names, inputs=inputs, outputs=outputs)
    return _Builder(graph, kept, steps, names, edges).module()


class _Builder:
    """Writes the nodes of one module."""

    def __init__(
        self, graph: OpGraph, kept: Kept | None, steps: Plan, names: ModuleNames, edges: Boundary
    ) -> None:
        self._graph = graph
        self._kept = kept
        self._plan = steps
        self._names = names
        self._edges = edges
        self._fakes = Fakes(graph)
        self._fx = fx.Graph()
        self._nodes: dict[int, fx.Node] = {}
        self._values: dict[str, Any] = {}
        # Of this module: what it writes, no other module made of the trace shares.
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._guards: list[Guard] = []
        wanted = (
            steps.read,
            steps.same_as.values(),
            steps.cut_from.values(),
            edges.outputs,
            edges.gradients.values(),
        )
        self._used = {number for numbers in wanted for number in numbers}

    def module(self) -> fx.GraphModule:
        """The finished module, with its ``Signature``."""
        edges = self._edges
        self._enter()
        for call in range(len(self._graph)):
            self._emit(call)
        results = [self._node(number) for number in (*edges.outputs, *edges.gradients.values())]
        output = self._fx.output(tuple(results))
        output.meta.update(with_values(tuple(node.meta["val"] for node in results)))
        module = fx.GraphModule(self._values, self._fx, class_name="TracedModule")
        module.meta[META] = self._signature()
        if self._kept is None:
            module.register_forward_pre_hook(_refuse_without_values)
        return module

    def _signature(self) -> Signature:
        edges, kept = self._edges, self._kept
        gradients = {self._name_of(number): number for number in edges.gradients}
        titles = self._graph.tensor_names
        return Signature(
            inputs=tuple(self._name_of(number) for number in edges.inputs),
            outputs=(
                *(titles.get(number, self._node(number).name) for number in edges.outputs),
                *(f"gradient of {name}" for name in gradients),
            ),
            gradients={name: len(edges.outputs) + place for place, name in enumerate(gradients)},
            written=tuple(self._name_of(n) for n in (*edges.inputs, *edges.attributes) if n in edges.written),
            guards=tuple(self._guards),
            example_inputs=None if kept is None else tuple(self._value(number) for number in edges.inputs),
            random_state={} if kept is None else kept.random_state,
        )

    def _name_of(self, number: int) -> str:
        """Of an input or an attribute."""
        return self._edges.attributes.get(number) or self._found[number].name

    # -- what the run found ------------------------------------------------------------------------

    def _enter(self) -> None:
        edges = self._edges
        for place, number in enumerate(edges.inputs, 1):
            self._nodes[number] = self._with_value(self._fx.placeholder(f"input_{place}"), number)
        for number, name in edges.attributes.items():
            value = self._value(number)
            if number in edges.parameters:
                value = torch.nn.Parameter(value, requires_grad=number in edges.trained)
            self._values[name] = value
            self._nodes[number] = self._with_value(self._fx.create_node("get_attr", name), number)
        self._found = dict(self._nodes)

    def _value(self, number: int) -> torch.Tensor:
        """A tensor as the run found it; a fake one where no values were kept."""
        kept = self._kept
        if kept is None:
            return self._fakes.tensor(number)
        if number in kept.without_storage:
            return kept.without_storage[number]
        meta = self._graph.tensor(number)
        storage = self._storages.get(meta.storage)
        if storage is None and meta.storage in kept.storages:
            storage = kept.storages[meta.storage]
            if number in self._edges.written:
                storage = storage.clone()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._storages[meta.storage] = storage
        if storage is None:
            raise FxError(f"inputs: no call of the trace found tensor {number} ({meta}) there, one made it")
        tensor = torch.empty(0, dtype=getattr(torch, meta.dtype), device=storage.device)
        with torch.no_grad():
            tensor.set_(storage, meta.offset, meta.shape, meta.stride)
        return tensor

    # -- calls -------------------------------------------------------------------------------------

    def _emit(self, call: int) -> None:
        graph = self._graph
        facts, template = graph.facts(call), graph.templates[graph.template_of(call)]
        op = overload_of(facts.name)
        tensors = (self._node(number) for number in graph.operands(call))
        args, kwargs = arguments_of(op, template, iter(list(tensors)), lambda: self._generator(call))
        node = self._fx.create_node("call_function", op, args, kwargs, name=op._overloadpacket.__name__)
        meta = self._origin(call)
        node.meta.update(meta)
        node.meta.update(with_values(self._result(op, template.out, iter(graph.outputs(call)))))
        node.meta[META] = {"call": call}
        self._take_apart(node, template.out, iter(graph.outputs(call)), meta)
        if _READS_VALUES.intersection(facts.tags):
            self._guards.append(_guard(graph, call, node))

    def _node(self, number: int) -> fx.Node:
        """The node that holds a tensor; cut out of another's storage where no call made it."""
        node = self._nodes.get(number)
        if node is not None:
            return node
        if number in self._plan.same_as:
            return self._node(self._plan.same_as[number])
        if number not in self._plan.cut_from:
            raise FxError(
                f"outputs: tensor {number} ({self._graph.tensor(number)}) is not held by the module"
            )
        base = self._plan.cut_from[number]
        meta, whole = self._graph.tensor(number), self._graph.tensor(base)
        if meta.dtype != whole.dtype:
            raise FxError(f"tensor {number} ({meta}) shows the bytes of a {whole}, and no call made it so")
        node = self._fx.call_function(
            torch.ops.aten.as_strided.default,
            (self._node(base), list(meta.shape), list(meta.stride), meta.offset),
        )
        self._nodes[number] = self._with_value(node, number)
        return node

    def _with_value(self, node: fx.Node, number: int) -> fx.Node:
        node.meta.update(with_values(self._fakes.tensor(number)))
        return node

    def _origin(self, call: int) -> dict[str, Any]:
        graph = self._graph
        found: dict[str, Any] = {}
        trace = stack_trace(graph.source(call))
        if trace:
            found["stack_trace"] = trace
        module = graph.module_call(call)
        if module is not None:
            found["nn_module_stack"] = dict(self._names.stack(module))
        tag = _TAGS.get(graph.phase(call))
        if tag is not None:
            found["partitioner_tag"] = tag
        return found

    def _result(self, op: torch._ops.OpOverload, template: object, numbers: Iterator[int]) -> Any:
        """The value of a call's node: fake tensors, in a list or a tuple as the op returns them."""
        if template is HOLE:
            return self._fakes.tensor(next(numbers))
        if isinstance(template, tuple):
            parts = [self._result(op, item, numbers) for item in template]
            return tuple(parts) if len(op._schema.returns) > 1 else parts
        return template

    def _take_apart(
        self, node: fx.Node, template: object, numbers: Iterator[int], meta: dict[str, Any]
    ) -> None:
        """Say which node holds each tensor of a result: the call's own, or one that takes it out of a list."""
        if template is HOLE:
            self._nodes[next(numbers)] = node
        elif isinstance(template, tuple):
            for place, item in enumerate(template):
                if item is HOLE:
                    number = next(numbers)
                    if number in self._used:
                        self._nodes[number] = self._with_value(self._part(node, place, meta), number)
                elif isinstance(item, tuple):
                    part = self._part(node, place, meta)
                    part.meta["val"] = node.meta["val"][place]
                    self._take_apart(part, item, numbers, meta)

    def _part(self, node: fx.Node, place: int, meta: dict[str, Any]) -> fx.Node:
        part = self._fx.call_function(operator.getitem, (node, place))
        part.meta.update(meta)
        return part

    def _generator(self, call: int) -> fx.Node:
        if self._kept is None:
            raise FxError(
                "a generator was passed to a random op: trace with keep_values=True, which keeps its state"
            )
        place = self._kept.generator_of[call]
        name = f"_generator{place}"
        if name not in self._values:
            self._values[name] = self._kept.generators[place].clone_state()
        return self._fx.create_node("get_attr", name)


def _guard(graph: OpGraph, call: int, node: fx.Node) -> Guard:
    numbers = graph.outputs(call)
    found = ", ".join(str(graph.tensor(number)) for number in numbers)
    line = graph.source(call).line
    return Guard(
        node.name,
        graph.facts(call).name,
        found or repr(graph.templates[graph.template_of(call)].out),
        str(line) if line else "",
    )


def _refuse_without_values(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    """A forward hook of a module whose attributes are fake: what to do, where torch would only say that it cannot."""
    from torch._subclasses.fake_tensor import FakeTensor

    real = any(isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) for value in inputs)
    fake = [
        name
        for name, value in (*module.named_parameters(), *module.named_buffers())
        if isinstance(value, FakeTensor)
    ]
    if fake and (real or not inputs):
        raise FxError(
            f"this module holds no values ({len(fake)} attributes, {fake[0]} among them, are fake tensors): trace with "
            "keep_values=True, or load them with load_state_dict(..., assign=True)"
        )
