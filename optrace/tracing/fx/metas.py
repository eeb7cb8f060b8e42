"""What torch's own tracers write into ``node.meta``, of recorded calls."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.shape_prop import _extract_tensor_metadata

from optrace.graph import Frame, ModuleCall, OpGraph, Source
from optrace.tracing.identity import NO_STORAGE
from optrace.tracing.sources import file_of


class Fakes:
    """Fake tensors for the tensors of one graph; those of one storage share one."""

    def __init__(self, graph: OpGraph) -> None:
        self._graph = graph
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, FakeTensor] = {}

    def tensor(self, number: int) -> FakeTensor:
        """The fake tensor that stands for a tensor's shape, stride, dtype, device and aliases."""
        known = self._tensors.get(number)
        if known is None:
            known = self._tensors[number] = self._make(number)
        return known

    def _make(self, number: int) -> FakeTensor:
        tensor = self._graph.tensor(number)
        dtype = getattr(torch, tensor.dtype)
        with torch.no_grad():
            if tensor.storage == NO_STORAGE:
                meta = torch.empty(tensor.shape, dtype=dtype, device="meta")
            else:
                storage = self._storages.get(tensor.storage)
                if storage is None:
                    nbytes = self._graph.storages[tensor.storage].nbytes
                    bytes_of = torch.empty(nbytes, dtype=torch.uint8, device="meta")
                    storage = self._storages[tensor.storage] = bytes_of.untyped_storage()
                meta = torch.empty(0, dtype=dtype, device="meta")
                meta.set_(storage, tensor.offset, tensor.shape, tensor.stride)
        return FakeTensor(self._mode, meta, torch.device(tensor.device))


def with_values(value: Any) -> dict[str, Any]:
    """``val`` and, of tensors, ``tensor_meta``."""
    found = {"val": value}
    described = _described(value)
    if described is not None:
        found["tensor_meta"] = described
    return found


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _extract_tensor_metadata(value)
    if isinstance(value, list | tuple) and any(
        isinstance(item, torch.Tensor | list | tuple) for item in value
    ):
        return type(value)(_described(item) for item in value)
    return None


def stack_trace(source: Source) -> str:
    """The frames as Python prints them, outermost first; empty where none is known."""
    return "".join(_line_of(frame) for frame in reversed(source.frames))


@cache
def _line_of(frame: Frame) -> str:
    file = file_of(frame.file)
    head = f'  File "{file}", line {frame.line}, in {frame.function.rpartition(".")[2]}\n'
    code = linecache.getline(file, frame.line).strip() if os.path.isfile(file) else ""
    return f"{head}    {code}\n" if code else head


class ModuleNames:
    """Paths of modules as ``torch.export`` writes them: from the model, whose own name is left out.

    The model is the outermost module that parameters and buffers lie in; with several, or none, every path keeps
    its first part.
    """

    def __init__(self, graph: OpGraph, classes: Mapping[str, str]) -> None:
        owners = {
            storage.name.partition(".")[0]
            for storage in graph.storages
            if storage.kind in ("parameter", "buffer")
        }
        self._root = owners.pop() if len(owners) == 1 else ""
        self._classes = {call.path: call.cls for call in graph.module_calls.rows} | dict(classes)
        self._stacks: dict[ModuleCall, dict[str, tuple[str, str]]] = {}

    def relative(self, path: str) -> str:
        """A path from the model."""
        if not self._root:
            return path
        first, _, rest = path.partition(".")
        return rest if first == self._root else path

    def stack(self, call: ModuleCall) -> dict[str, tuple[str, str]]:
        """``nn_module_stack``: from the outermost module inwards, a key with its path and class. A module's further
        calls are ``path@1``, ``path@2``."""
        known = self._stacks.get(call)
        if known is None:
            known = self._stacks[call] = dict(self._entries(call))
        return known

    def _entries(self, call: ModuleCall) -> Iterator[tuple[str, tuple[str, str]]]:
        parts = call.path.split(".")
        for length in range(1, len(parts) + 1):
            path = ".".join(parts[:length])
            if path not in self._classes and length < len(parts):
                continue  # a container that is never called, as a ModuleList
            name = self.relative(path) if path != self._root else ""
            said = f"{name}@{call.call - 1}" if path == call.path and call.call > 1 else name
            key = "L__self__" + "".join(f"_{part}" for part in said.split(".") if part)
            yield key, (said, self._classes.get(path, call.cls))
