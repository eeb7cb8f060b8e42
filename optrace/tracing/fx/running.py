"""A captured graph (``torch.export``, ``make_fx``, Dynamo, a trace's own) run node by node, to be recorded."""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from optrace.graph import Frame, ModuleCall, Phase, Source
from optrace.graph.nouns import PHASES
from optrace.tracing.fx.build import META
from optrace.tracing.fx.errors import FxError
from optrace.tracing.session import Session
from optrace.tracing.sources import is_user_code, shortened


def run_captured(session: Session, module: fx.GraphModule, inputs: Sequence[Any] = ()) -> None:
    """Run ``module`` on the session's device and record its calls with the modules and lines that its nodes name.

    Nothing of ``module`` or ``inputs`` is changed. Without ``inputs`` the placeholders' ``meta["val"]`` stand for them.
    A graph captured on the CPU alone is run on the session's device; in one that names a GPU each tensor stays where it
    is. On a GPU the run is made with fake tensors. Raises ``FxError`` for placeholders without an input or a value.
    """
    with ExitStack() as stack:
        # On a GPU nothing has to be computed either. A stand-in's tensors are fake already.
        fake = stack.enter_context(_KnownReads()) if session.mode == "cuda" else None
        given = list(inputs) if inputs else _placeholder_values(module)
        moved = session.device != "cpu" and _on_the_cpu(module, given)
        place = _Place(session, moved, fake, followed=not _below_autograd(module))
        if inputs:
            given = list(module.graph.process_inputs(*given))
            _check_count(module, len(given))
        args = pytree.tree_map(place, given)
        runner = _Runner(module, session, place, moved, fake)
        stack.enter_context(torch.device(session.device) if moved else nullcontext())
        with session.recording():
            runner.run(*args, enable_io_processing=False)
        runner.say_origins()


class _KnownReads(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch leaves its mode hooks untyped
    """FakeTensorMode in which a read of a value answers with the value that the node had when it was captured."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.value: object = None

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """As torch's."""
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(
            self.value, bool | int | float | complex
        ):
            return self.value
        return super().dispatch(func, types, args, kwargs)


class _Place:
    """Puts tensors and modules where they are to be run."""

    def __init__(self, session: Session, moved: bool, mode: FakeTensorMode | None, *, followed: bool) -> None:
        self._followed = followed
        self._session = session
        self._moved = moved
        self._mode = mode

    def __call__(self, value: Any) -> Any:
        """Numbers that torch holds as symbols become those that they stood for when the graph was captured."""
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return _hint(value)
        return value

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._mode is None and not isinstance(tensor, FakeTensor):
            with torch.no_grad():
                mine = tensor.detach().clone() if self._session.mode == "cpu" else tensor.detach()
                placed = self._session.place(mine) if self._moved else mine
        else:
            device = torch.device(self._session.device) if self._moved else tensor.device
            shape, stride = ([_hint(n) for n in size] for size in (tensor.shape, tensor.stride()))
            placed = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=device)
        return placed.requires_grad_(tensor.requires_grad and self._followed)

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        mine = copy.deepcopy(module)
        for part in mine.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                placed = self._tensor(tensor)
                if isinstance(tensor, torch.nn.Parameter):
                    placed = torch.nn.Parameter(placed.detach(), tensor.requires_grad)
                setattr(part, name, placed)
        return mine


class _Runner(fx.Interpreter):
    """Runs a graph with its attributes put in place beforehand, and notes which calls each node made."""

    def __init__(
        self, module: fx.GraphModule, session: Session, place: _Place, moved: bool, reads: _KnownReads | None
    ) -> None:
        super().__init__(module)
        self._reads = reads
        self._session = session
        self._moved = moved
        self._spans: list[tuple[fx.Node, int, int]] = []
        self._attributes: dict[str, Any] = {}
        for node in module.graph.nodes:
            if node.op in ("get_attr", "call_module") and node.target not in self._attributes:
                self._attributes[node.target] = place(self.fetch_attr(node.target))

    def run_node(self, n: fx.Node) -> Any:
        """As torch's."""
        start = self._session.calls
        if self._reads is not None:
            self._reads.value = n.meta.get("val")
        result = super().run_node(n)
        self._spans.append((n, start, self._session.calls))
        return result

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:  # noqa: ARG002  # torch's signature
        """The attribute where it was placed."""
        return self._attributes[target]

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        """The module where it was placed. Guards of an exported program ask nothing of the device."""
        if target == "_guards_fn":
            return None
        return self._attributes[target](*args, **kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """With the CPU's name replaced where the graph was moved."""
        if self._moved:
            args, kwargs = pytree.tree_map(_to_gpu, (args, kwargs))
            if kwargs.get("device") == "cpu":
                kwargs = {**kwargs, "device": "cuda"}
            elif isinstance(target, torch._ops.OpOverload) and _makes_tensors(target, kwargs):
                kwargs = {**kwargs, "device": torch.device("cuda")}
        return super().call_function(target, args, kwargs)

    def say_origins(self) -> None:
        """Give each recorded call its node's line, module and phase."""
        graph = self._session.graph
        for node, start, end in self._spans:
            source = graph.sources.add(_source_of(node)) if end > start else -1
            call = _module_of(node) if end > start else None
            module = graph.module_calls.add(call) if call is not None else -1
            for number in range(start, end):
                graph.set_origin(
                    number, source=source, module=module, phase=_phase_of(node, graph.phase(number))
                )


def _below_autograd(module: fx.GraphModule) -> bool:
    """Whether the graph is made of ATen calls alone: those that autograd makes are among them, as in-place writes to
    parameters under ``no_grad`` may be."""
    return all(
        isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        for node in module.graph.nodes
        if node.op in ("call_function", "call_method")
        or (node.op == "call_module" and node.target != "_guards_fn")
    )


def _to_gpu(value: Any) -> Any:
    return torch.device("cuda") if isinstance(value, torch.device) and value.type == "cpu" else value


def _makes_tensors(op: torch._ops.OpOverload, kwargs: dict[str, Any]) -> bool:
    """Whether an op makes tensors of no tensor, on a device that the call does not name."""
    arguments = op._schema.arguments
    return (
        "device" not in kwargs
        and any(argument.name == "device" for argument in arguments)
        and not any("Tensor" in str(argument.type) for argument in arguments)
    )


def _placeholder_values(module: fx.GraphModule) -> list[Any]:
    values = []
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val", node.meta.get("example_value"))
        if value is None and not node.args:
            raise FxError(f"placeholder {node.name} has no meta['val']: give from_fx the graph's inputs")
        values.append(node.args[0] if value is None else value)
    return values


def _check_count(module: fx.GraphModule, given: int) -> None:
    """``fx.Interpreter`` lets too many inputs pass."""
    placeholders = module.graph.find_nodes(op="placeholder")
    needed = sum(not node.args for node in placeholders)
    if not needed <= given <= len(placeholders):
        names = ", ".join(node.name for node in placeholders) or "none"
        inputs = "1 input" if len(placeholders) == 1 else f"{len(placeholders)} inputs"
        raise FxError(f"the graph takes {inputs} ({names}), and {given} were given")


def _on_the_cpu(module: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether nothing in the graph is on a GPU or names one."""
    nodes = module.graph.nodes
    values = [*inputs, *(node.meta.get("val", node.meta.get("example_value")) for node in nodes)]
    named = [value for node in nodes for value in pytree.tree_leaves([list(node.args), dict(node.kwargs)])]
    devices = [
        *(value.device for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor)),
        *(tensor.device for tensor in (*module.parameters(), *module.buffers())),
        *(value for value in named if isinstance(value, torch.device)),
    ]
    return all(device.type in ("cpu", "meta") for device in devices)


def _hint(value: Any) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        hint = value.node.hint
        if hint is None:
            raise FxError(f"a size of the graph ({value}) depends on values: give from_fx the graph's inputs")
        return hint
    return value


_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)')


def _source_of(node: fx.Node) -> Source:
    """The frames of ``meta["stack_trace"]``, innermost first, to the innermost of the user's."""
    frames = []
    for file, line, function in reversed(_FRAME.findall(node.meta.get("stack_trace") or "")):
        frames.append(Frame(shortened(file), int(line), function.strip(), is_user_code(file)))
        if frames[-1].user:
            return Source(tuple(frames))
    return Source()


def _module_of(node: fx.Node) -> ModuleCall | None:
    """The innermost module of ``meta["nn_module_stack"]``, named from its root's class as a trace names it."""
    entries = list((node.meta.get("nn_module_stack") or {}).values())
    if not entries:
        return None
    path, kind = entries[-1]
    path, _, further = _plain_path(path).partition("@")
    first, first_kind = entries[0]
    root = _class_name(first_kind) if not _plain_path(first) else ""
    return ModuleCall(
        ".".join(part for part in (root, path) if part),
        _class_name(kind),
        int(further) + 1 if further.isdigit() else 1,
    )


def _plain_path(path: str) -> str:
    """``blocks.0`` of ``L['self'].blocks[0]`` and of ``L__self___blocks.0``."""
    path = re.sub(r"^(L\['\w+'\]|L__self__)[._]*", "", path)
    path = path.replace("_modules", "").replace("._parameters", "")
    return re.sub(r"\.+", ".", re.sub(r"\['?([^'\]]+)'?\]", r".\1", path)).strip(".")


def _class_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).rpartition(".")[2]


def _phase_of(node: fx.Node, recorded: Phase) -> Phase:
    own = node.meta.get(META)
    if isinstance(own, dict) and own.get("phase") in PHASES:
        phase: Phase = own["phase"]
        return phase
    return "backward" if node.meta.get("partitioner_tag") == "is_backward" else recorded
