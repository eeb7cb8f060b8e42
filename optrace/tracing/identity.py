"""Which tensor objects and storages are the same ones, without keeping any alive.

Objects are known by address, which another may get once they are gone: of a tensor and of a storage a weak reference
is kept, which carries what else is known. A storage's tells when it was freed. New tensors are most of what recording
costs, so one object is made for one, and numbers are given out later, many at once (``encoding``).
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from weakref import ref

import torch
from torch._subclasses.fake_tensor import FakeTensor

NO_STORAGE = -1

#: The number of what has none yet: above all that are given out.
UNNUMBERED = sys.maxsize

#: So many tensors are remembered before those that are gone are looked for.
_MANY = 4096


class SeenStorage(ref[torch.UntypedStorage]):
    """A storage as large as it was when it was seen last; whom its end is told gets this reference."""

    __slots__ = ("address", "device", "nbytes", "number", "pinned")

    number: int
    address: int
    nbytes: int
    device: str
    pinned: bool


class SeenTensor(ref[torch.Tensor]):
    """A tensor as it was when it was first seen."""

    __slots__ = ("device", "dtype", "number", "offset", "shape", "storage", "stride")

    number: int
    storage: SeenStorage | None
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int | torch.SymInt
    dtype: torch.dtype
    device: str


class Identities:
    """Tells tensors and storages apart.

    ``device_name`` gives the device as the user's program sees it. ``gone`` is called with the reference to a storage
    that was freed, anywhere in the program: a function of C is quick there.
    """

    def __init__(
        self, device_name: Callable[[torch.device], str], gone: Callable[[SeenStorage], object]
    ) -> None:
        self._device_name = device_name
        self._gone = gone
        self._tensors: dict[int, SeenTensor] = {}
        self._room = _MANY
        self._storages: dict[int, SeenStorage] = {}
        self._devices: dict[torch.device, str] = {}
        #: Storages that had a number when they were seen to have grown.
        self.grown: list[SeenStorage] = []

    def seen(self, tensor: torch.Tensor) -> SeenTensor:
        """What is known of a tensor; a new one if its layout or its storage was exchanged since it was seen."""
        seen = self._tensors.get(id(tensor))
        if seen is not None and seen() is tensor:
            storage = seen.storage
            if storage is None or (
                tensor.untyped_storage() is storage()
                and tensor.shape == seen.shape
                and tensor.stride() == seen.stride
                and tensor.storage_offset() == seen.offset
            ):
                return seen
        return self._enter(tensor)

    def close(self) -> None:
        """Forget every object; none is waited for any more."""
        self._tensors.clear()
        self._storages.clear()

    def live(self) -> Iterator[SeenStorage]:
        """The storages of all device tensors that are alive: a step may free them without touching them,
        as ``zero_grad`` does with the gradients of the step before. Fake tensors of another mode are on no device of
        this run."""
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if mode is None and not _cuda_is_there():
            return
        gc.collect()
        classes = _with_subclasses(torch.Tensor)
        for item in [item for item in gc.get_objects() if type(item) in classes]:
            # As it was made: a stand-in takes those of an earlier one over where they are asked.
            if isinstance(item, FakeTensor) and vars(item).get("fake_mode") is not mode:
                continue
            yield from self._on_device(item)
            # Of a view torch raises where its base was since written.
            if not item._is_view() and item.is_leaf and item.requires_grad and item.grad is not None:
                yield from self._on_device(item.grad)

    def _on_device(self, tensor: torch.Tensor) -> Iterator[SeenStorage]:
        try:
            if self.device_name(_device(tensor)) not in ("cpu", "meta") and _has_storage(tensor):
                yield self._storage(tensor)
        except (RuntimeError, NotImplementedError):
            pass  # a wrapper that has no storage to ask for

    def known_storage(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage if it was seen before."""
        if not _has_storage(tensor):
            return None
        storage = tensor.untyped_storage()
        seen = self._storages.get(id(storage))
        return None if seen is None or seen() is not storage else _number(seen)

    def known_tensor(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor object if it was seen before."""
        seen = self._tensors.get(id(tensor))
        return None if seen is None or seen() is not tensor else _number(seen)

    def alive(self) -> Iterator[tuple[int, torch.Tensor]]:
        """The tensors that have a number and still live, with their numbers."""
        for seen in list(self._tensors.values()):
            tensor, number = seen(), _number(seen)
            if tensor is not None and number is not None:
                yield number, tensor

    def forget_gone(self) -> None:
        """Remember no more tensors than twice as many as are alive, if they are many."""
        if len(self._tensors) > self._room:
            for address, seen in list(self._tensors.items()):
                if seen() is None:
                    del self._tensors[address]
            self._room = max(_MANY, 2 * len(self._tensors))

    def forget_storage(self, seen: SeenStorage) -> None:
        """A storage was freed; another may have its address by now."""
        if self._storages.get(seen.address) is seen:
            del self._storages[seen.address]

    def _enter(self, tensor: torch.Tensor) -> SeenTensor:
        seen = SeenTensor(tensor)
        seen.number, seen.dtype = UNNUMBERED, tensor.dtype
        if tensor.layout is torch.strided and not tensor.is_nested:
            storage = seen.storage = self._storage(tensor)
            seen.device = storage.device
            seen.shape, seen.stride, seen.offset = tensor.shape, tensor.stride(), tensor.storage_offset()
        else:
            seen.storage = None
            seen.device, seen.stride, seen.offset = self.device_name(_device(tensor)), (), 0
            # One that C++ nests has no shape.
            seen.shape = torch.Size() if tensor.layout is torch.strided else tensor.shape
        self._tensors[id(tensor)] = seen  # whole, whatever interrupts
        return seen

    def _storage(self, tensor: torch.Tensor) -> SeenStorage:
        """The storage of a tensor, as large as it is now."""
        storage = tensor.untyped_storage()
        address, nbytes = id(storage), storage.nbytes()
        seen = self._storages.get(address)
        if seen is None or seen() is not storage:
            seen = SeenStorage(storage, self._gone)
            seen.number, seen.address, seen.nbytes = UNNUMBERED, address, nbytes
            seen.device = device = self.device_name(_device(tensor))
            seen.pinned = device == "cpu" and _is_pinned(tensor)
            self._storages[address] = seen
        elif seen.nbytes < nbytes:
            seen.nbytes = nbytes
            self.grown.append(seen)
        return seen

    def device_name(self, device: torch.device) -> str:
        """A device as the user's program sees it."""
        name = self._devices.get(device)
        if name is None:
            name = self._devices[device] = self._device_name(device)
        return name


def _with_subclasses(cls: type) -> set[type]:
    """A class and all below it."""
    below: list[type] = type.__subclasses__(cls)
    return {cls}.union(*map(_with_subclasses, below))


def _cuda_is_there() -> bool:
    """Whether CUDA was started: before, no memory is on a device and none is pinned."""
    return torch.cuda.is_initialized()  # type: ignore[no-untyped-call,no-any-return]  # torch leaves it untyped


def _number(seen: SeenTensor | SeenStorage) -> int | None:
    return None if seen.number == UNNUMBERED else seen.number


def _device(tensor: torch.Tensor) -> torch.device:
    return tensor.fake_device if type(tensor) is FakeTensor else tensor.device


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Whether the host's memory may be copied from while the host goes on. The stand-in's tensors say so themselves;
    a subclass would run code of its own to answer."""
    if isinstance(tensor, FakeTensor):
        return bool(getattr(tensor, "pinned", False))
    return type(tensor) is torch.Tensor and _cuda_is_there() and tensor.is_pinned()
