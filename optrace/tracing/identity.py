"""Which tensor objects and storages are the same ones, without keeping any alive.

Objects are known by address while they live; a weak reference's callback forgets the address when the
object dies, before it can be used again.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from weakref import ref

import torch
from torch._subclasses.fake_tensor import FakeTensor

from optrace.graph import OpGraph, Storage
from optrace.graph.opgraph import Layout

NO_STORAGE = -1


#: A tensor object as it was when it got its number: a watch, the number, the storage's address (None without a
#: storage), shape, stride, offset. A tuple: one is made for each tensor of a program.
_Known = tuple["ref[torch.Tensor]", int, int | None, torch.Size, tuple[int, ...], int]


@dataclass(slots=True)
class _Stored:
    watch: ref[torch.UntypedStorage]
    number: int
    device: str
    nbytes: int


class Identities:
    """Numbers tensors and storages of one graph by first appearance.

    ``device_name`` gives the device as the user's program sees it. ``on_free`` hears the number of a
    storage that is gone.
    """

    def __init__(
        self,
        graph: OpGraph,
        device_name: Callable[[torch.device], str],
        on_free: Callable[[int], None],
    ) -> None:
        self._graph = graph
        self._device_name = device_name
        self._on_free = on_free
        self._tensors: dict[int, _Known] = {}
        self._storages: dict[int, _Stored] = {}
        self._devices: dict[torch.device, str] = {}
        self._dtypes: dict[torch.dtype, str] = {}
        self._layouts: dict[tuple[object, ...], int] = {}

    def tensor(self, tensor: torch.Tensor) -> int:
        """The number of a tensor; a new one if its layout or its storage was exchanged since it was seen."""
        address = id(tensor)
        known = self._tensors.get(address)
        if known is not None:
            _, number, storage_address, shape, stride, offset = known
            if storage_address is None or (
                tensor.untyped_storage()._cdata == storage_address
                and tensor.shape == shape
                and tensor.stride() == stride
                and tensor.storage_offset() == offset
            ):
                return number
        storage_address, storage, device = self._storage(tensor)
        shape = tensor.shape
        stride, offset = (tensor.stride(), int(tensor.storage_offset())) if storage != NO_STORAGE else ((), 0)
        number = self._graph.add_tensor(self._layout(shape, stride, tensor.dtype, device), storage, offset)
        # The callback is called with the reference, which `pop` takes for its default.
        watch = ref(tensor, partial(self._tensors.pop, address))
        self._tensors[address] = (watch, number, storage_address, shape, stride, offset)
        return number

    def close(self) -> None:
        """Forget every object; none is waited for any more."""
        self._tensors.clear()
        self._storages.clear()

    def register_live(self) -> None:
        """Number the storages of all device tensors that are alive: a step may free them without touching them,
        as ``zero_grad`` does with the gradients of the step before."""
        gc.collect()
        for item in gc.get_objects():
            if issubclass(type(item), torch.Tensor):
                self._register(item)
                # Of a view torch raises where its base was since written.
                if not item._is_view() and item.is_leaf and item.requires_grad and item.grad is not None:
                    self._register(item.grad)

    def _register(self, tensor: torch.Tensor) -> None:
        try:
            if self._device(tensor.device) not in ("cpu", "meta"):
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
        return None if known is None else known[1]

    def alive(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensors that were seen and still live, with their numbers."""
        for watch, number, *_ in list(self._tensors.values()):
            tensor = watch()
            if tensor is not None:
                yield number, tensor

    def _storage(self, tensor: torch.Tensor) -> tuple[int | None, int, str]:
        """Address, number and device of a tensor's storage."""
        if not _has_storage(tensor):
            return None, NO_STORAGE, self._device(tensor.device)
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._storages.get(address)
        if known is not None:
            nbytes = storage.nbytes()
            if known.nbytes < nbytes:
                known.nbytes = nbytes
                self._graph.set_storage(known.number, nbytes=nbytes)
            return address, known.number, known.device
        device, nbytes = self._device(tensor.device), storage.nbytes()
        kind = "pinned" if device == "cpu" and _is_pinned(tensor) else ""
        number = self._graph.add_storage(Storage(nbytes, device, kind))
        self._storages[address] = _Stored(
            ref(storage, partial(self._forget, address, number)), number, device, nbytes
        )
        return address, number, device

    def _forget(self, address: int, number: int, _watch: object) -> None:
        known = self._storages.get(address)
        if known is not None and known.number == number:
            del self._storages[address]
            self._on_free(number)

    def _layout(self, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: str) -> int:
        key = (shape, stride, dtype, device)
        number = self._layouts.get(key)
        if number is None:
            sizes = tuple(int(n) for n in shape)
            steps = tuple(int(n) for n in stride) or (0,) * len(sizes)
            number = self._layouts[key] = self._graph.layouts.add(
                Layout(sizes, steps, self._dtype(dtype), device)
            )
        return number

    def _device(self, device: torch.device) -> str:
        name = self._devices.get(device)
        if name is None:
            name = self._devices[device] = self._device_name(device)
        return name

    def _dtype(self, dtype: torch.dtype) -> str:
        name = self._dtypes.get(dtype)
        if name is None:
            name = self._dtypes[dtype] = str(dtype).removeprefix("torch.")
        return name


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the host's memory may be copied from while the host goes on. The stand-in's tensors say so themselves;
    a subclass would run code of its own to answer."""
    if isinstance(tensor, FakeTensor):
        return bool(getattr(tensor, "pinned", False))
    return type(tensor) is torch.Tensor and tensor.is_pinned()
