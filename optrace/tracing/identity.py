"""Which tensor objects and storages are the same ones, without keeping any alive.

Objects are known by address, which another may get once they are gone: a tensor is kept as a weak reference beside
what it was; a storage's has a callback, which tells that it was freed. New tensors are most of what recording costs,
so little is made for one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from weakref import ref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from optrace.graph import OpGraph, Storage
from optrace.graph.opgraph import Layout

NO_STORAGE = -1

#: A tensor as it was when it got its number: the object, the number, the storage's address (None without a storage),
#: shape, stride, offset.
_Known = tuple["ref[torch.Tensor]", int, int | None, torch.Size, tuple[int, ...], int]

#: So many tensors are remembered before those that are gone are looked for.
_MANY = 4096


class _Watch(ref[torch.UntypedStorage]):
    """The storage at ``address``, which has a number, until it is freed."""

    __slots__ = ("address", "number")

    address: int
    number: int


class Identities:
    """Numbers tensors and storages of one graph by first appearance, and tells the graph which storages are freed.

    ``device_name`` gives the device as the user's program sees it.
    """

    def __init__(self, graph: OpGraph, device_name: Callable[[torch.device], str]) -> None:
        self._graph = graph
        self._device_name = device_name
        self._tensors: dict[int, _Known] = {}
        self._room = _MANY
        self._storages: dict[int, _Watch] = {}
        # What many have in common, made once.
        self._devices: dict[torch.device, str] = {}
        self._contents: dict[tuple[int, str, str], Storage] = {}
        self._layouts: dict[tuple[object, ...], int] = {}

    def tensor(self, tensor: torch.Tensor) -> int:
        """The number of a tensor; a new one if its layout or its storage was exchanged since it was seen."""
        known = self._tensors.get(id(tensor))
        if known is not None:
            watch, number, address, shape, stride, offset = known
            if watch() is tensor and (
                address is None
                or (
                    tensor.untyped_storage()._cdata == address
                    and tensor.shape == shape
                    and tensor.stride() == stride
                    and tensor.storage_offset() == offset
                )
            ):
                return number
        return self._enter(tensor)

    def close(self) -> None:
        """Forget every object; none is waited for any more."""
        self._tensors.clear()
        self._storages.clear()

    def register_live(self) -> None:
        """Number the storages of all device tensors that are alive: a step may free them without touching them,
        as ``zero_grad`` does with the gradients of the step before. Fake tensors of another mode are on no device of
        this run."""
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        gc.collect()
        for item in gc.get_objects():
            if issubclass(type(item), torch.Tensor):
                if isinstance(item, FakeTensor) and item.fake_mode is not mode:
                    continue
                self._register(item)
                # Of a view torch raises where its base was since written.
                if not item._is_view() and item.is_leaf and item.requires_grad and item.grad is not None:
                    self._register(item.grad)

    def _register(self, tensor: torch.Tensor) -> None:
        try:
            if self._device(tensor) not in ("cpu", "meta") and _has_storage(tensor):
                self._storage(tensor)
        except (RuntimeError, NotImplementedError):
            pass  # a wrapper that has no storage to ask for

    def known_storage(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage if it was seen before."""
        if not _has_storage(tensor):
            return None
        known = self._storages.get(tensor.untyped_storage()._cdata)
        return None if known is None else known.number

    def known_tensor(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor object if it was seen before."""
        known = self._tensors.get(id(tensor))
        return None if known is None or known[0]() is not tensor else known[1]

    def alive(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensors that were seen and still live, with their numbers."""
        for watch, number, *_ in list(self._tensors.values()):
            tensor = watch()
            if tensor is not None:
                yield number, tensor

    def _enter(self, tensor: torch.Tensor) -> int:
        """A new number for a tensor."""
        graph, shape = self._graph, tensor.shape
        address: int | None = None
        stride: tuple[int, ...] = ()
        storage, offset = NO_STORAGE, 0
        if _has_storage(tensor):
            watch = self._storage(tensor)
            address, storage = watch.address, watch.number
            stride, offset = tensor.stride(), int(tensor.storage_offset())
            device = graph.storages[storage].device
        else:
            device = self._device(tensor)
        key = (shape, stride, tensor.dtype, device)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = graph.layouts.add(_layout(shape, stride, tensor.dtype, device))
        number = graph.add_tensor(layout, storage, offset)
        self._tensors[id(tensor)] = (ref(tensor), number, address, shape, stride, offset)
        if len(self._tensors) > self._room:
            self._tensors = {at: known for at, known in self._tensors.items() if known[0]() is not None}
            self._room = max(_MANY, 2 * len(self._tensors))
        return number

    def _storage(self, tensor: torch.Tensor) -> _Watch:
        """The storage of a tensor, as large as it is now."""
        storage = tensor.untyped_storage()
        address, nbytes = storage._cdata, storage.nbytes()
        known = self._storages.get(address)
        if known is not None:
            if self._graph.storages[known.number].nbytes < nbytes:
                self._graph.set_storage(known.number, nbytes=nbytes)
            return known
        device = self._device(tensor)
        key = (nbytes, device, "pinned" if device == "cpu" and _is_pinned(tensor) else "")
        content = self._contents.get(key)
        if content is None:
            content = self._contents[key] = Storage(*key)
        watch = self._storages[address] = _Watch(storage, self._freed)
        watch.address, watch.number = address, self._graph.add_storage(content)
        return watch

    def _freed(self, watch: _Watch) -> None:
        if self._storages.get(watch.address) is watch:
            del self._storages[watch.address]
            self._graph.add_free(watch.number, len(self._graph) - 1)

    def _device(self, tensor: torch.Tensor) -> str:
        device = tensor.fake_device if type(tensor) is FakeTensor else tensor.device
        name = self._devices.get(device)
        if name is None:
            name = self._devices[device] = self._device_name(device)
        return name


def _layout(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: str) -> Layout:
    sizes = tuple(int(n) for n in shape)
    steps = tuple(int(n) for n in stride) or (0,) * len(sizes)
    return Layout(sizes, steps, str(dtype).removeprefix("torch."), device)


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the host's memory may be copied from while the host goes on. The stand-in's tensors say so themselves;
    a subclass would run code of its own to answer."""
    if isinstance(tensor, FakeTensor):
        return bool(getattr(tensor, "pinned", False))
    return type(tensor) is torch.Tensor and tensor.is_pinned()
