"""Pointwise kernels, copies and casts: one pass over the elements (CUDALoops.cuh, Copy.cu, Shape.cu)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.device.kernel import SMALL, Kernel, Launch, launches
from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import contiguous, copies_as_memcpy, suggests_channels_last
from optrace.cost.rules.table import inputs_read, on_device, outputs_written
from optrace.cost.rules.tensor_iterator import broadcasts, byte_strides, merged, order_of_dims
from optrace.cost.sectors import SECTOR
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta

#: Elements that one block of the unvectorized kernel takes: 128 threads, four each.
STRIDED_BLOCK = 512

#: Functions that take many instructions an element.
HEAVY = frozenset(
    {
        "aten.gelu", "aten.gelu_backward", "aten.tanh", "aten.erf", "aten.mish", "aten.mish_", "aten.softplus",
        "aten.elu", "aten.elu_", "aten.sin", "aten.cos", "aten.silu", "aten.silu_", "aten.sigmoid", "aten.sigmoid_",
        "aten.pow", "aten.exp", "aten.log", "aten.silu_backward", "aten.tanh_", "aten.sin_", "aten.cos_",
    }
)  # fmt: skip


def over(
    shape: Sequence[int],
    *operands: TensorMeta,
    casts: bool = False,
    heavy: bool = False,
) -> Kernel:
    """A TensorIterator kernel over operands broadcast to ``shape``.

    Vectorized where all of them are one run of memory of one dtype; else each element's offsets are worked out.
    """
    nbytes = float(sum(tensor.nbytes for tensor in operands))
    numel = math.prod(shape)
    strides = [byte_strides(tensor, shape) for tensor in operands]
    run = merged(shape, strides, order_of_dims(shape, strides))
    plain = len(run.shape) <= 1 and all(
        steps in ((), (tensor.itemsize,)) for steps, tensor in zip(run.strides, operands, strict=True)
    )
    if numel <= 1:
        return Kernel("small")
    if plain:
        if casts:
            return Kernel("cast", nbytes, numel / STRIDED_BLOCK, 1)
        if len(operands) == 1:
            return Kernel("fill", nbytes)
        return Kernel("heavy" if heavy else "vectorized", nbytes, numel / STRIDED_BLOCK, 1)
    # An operand whose neighbours lie apart is fetched a sector an element.
    touched = 0.0
    for steps, tensor in zip(run.strides, operands, strict=True):
        apart = bool(steps) and steps[0] > tensor.itemsize
        touched += tensor.nbytes * (min(SECTOR, steps[0]) / tensor.itemsize if apart else 1.0)
    if touched > nbytes:
        return Kernel("transposing", nbytes, numel / STRIDED_BLOCK, len(run.shape))
    return Kernel("strided", nbytes, numel / STRIDED_BLOCK, len(run.shape))


def copy(source: TensorMeta, destination: TensorMeta) -> Launch:
    """``destination.copy_(source)`` within the device."""
    if copies_as_memcpy(source, destination):
        return Kernel("memcpy", float(source.nbytes + destination.nbytes))
    dtypes = {source.dtype, destination.dtype}
    # float32 to 16 bits has a vectorized kernel of its own (Copy.cu).
    narrowed = source.dtype == "float32" and destination.dtype in ("bfloat16", "float16")
    return over(destination.shape, destination, source, casts=len(dtypes) > 1 and not narrowed)


def pieces(kernel: Kernel, count: int) -> list[Launch]:
    """The kernel in ``count`` launches: 32-bit offsets do not reach over all of it."""
    return [replace(kernel, nbytes=kernel.nbytes / count, blocks=kernel.blocks / count)] * count


def pointwise(node: OpNode, work: Work) -> Kernel:
    """One pass over all that a pointwise op reads and writes."""
    written = [access.tensor for access in outputs_written(node)]
    if not written:
        return SMALL
    shape = max((tensor.shape for tensor in written), key=lambda sizes: (math.prod(sizes), len(sizes)))
    changed = {tensor.id for tensor in written}
    read = [
        access.tensor
        for access in inputs_read(node)
        if broadcasts(access.tensor.shape, shape) and access.tensor.id not in changed
    ]
    operands = (*(tensor for tensor in written if tensor.shape == shape), *read)
    values = {tensor.dtype for tensor in operands if tensor.dtype != "bool"}
    out_differs = written[0].dtype != "bool" and len(values) > 1
    kernel = over(shape, *operands, casts=out_differs, heavy=node.facts.packet in HEAVY)
    extra = sum(
        a.nbytes
        for a in work.writes
        if a.tensor.id in changed and any(node.writes) and a.tensor.id in {i.id for i in node.inputs}
    )
    # What is changed in place is read and written.
    return replace(kernel, nbytes=kernel.nbytes + extra) if extra and kernel.kind != "fill" else kernel


def flat(kernel: str, *tensors: TensorMeta) -> Kernel:
    """A kernel of this kind over whole tensors."""
    return Kernel(kernel, float(sum(tensor.nbytes for tensor in tensors)))


def relaid(*tensors: TensorMeta) -> list[Launch]:
    """``.contiguous()`` of each that is not."""
    return [copy(tensor, contiguous(tensor)) for tensor in tensors if not tensor.is_contiguous]


@launches("aten.copy_", "aten._to_copy", "aten.clone", "aten.lift_fresh_copy", "aten.contiguous")
def copies(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    if node.facts.packet == "aten.copy_":
        source, destination = node.tensor("src"), node.tensor("self")
    else:
        source, destination = node.inputs[0], node.outputs[0]
    if on_device(source) != on_device(destination):
        side = source if on_device(source) else destination
        return [*([copy(side, contiguous(side))] * (work.kernels or 0)), Kernel("across", float(side.nbytes))]
    return [copy(source, destination)]


@launches("aten.native_dropout", "aten._fused_dropout")
def drops(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    numel = node.inputs[0].numel
    return [Kernel("random", float(work.tensor_bytes), numel / STRIDED_BLOCK, 1)]


@launches(
    "aten.bernoulli", "aten.bernoulli_", "aten.exponential_", "aten.normal_", "aten.rand", "aten.rand_like", "aten.randn",
    "aten.randn_like", "aten.random_", "aten.uniform_", "aten.randint", "aten.randint_like",
)  # fmt: skip
def draws(_node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    numel = sum(access.tensor.numel for access in work.writes)
    return [Kernel("random", float(work.tensor_bytes), numel / STRIDED_BLOCK, 1)]


@launches("aten.masked_fill")
def copies_then_fills(node: OpNode, _work: Work, _target: Target) -> Sequence[Launch]:
    source, result, mask = node.inputs[0], node.outputs[0], node.tensor("mask")
    fill = over(result.shape, result, mask)
    return [copy(source, result), replace(fill, nbytes=fill.nbytes + result.nbytes)]


@launches("aten.cat", "aten.stack")
def concatenates(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    """The batched copy loads 16 bytes at once where every input and the place it goes to allow it, which a
    dimension's size in bytes decides (``CatArrayBatchedCopy_vectorized`` in Shape.cu)."""
    tensors = [tensor for tensor in node.tensors("tensors") if tensor.numel]
    result = node.outputs[0]
    if work.memcpys and not work.kernels:
        return [Kernel("memcpy", 2.0 * tensor.nbytes) for tensor in tensors]
    nbytes = float(sum(tensor.nbytes for tensor in tensors)) + sum(t.numel * t.itemsize for t in tensors)
    in_order = all(tensor.is_contiguous for tensor in tensors)
    if not in_order and not all(suggests_channels_last(tensor) for tensor in tensors):
        kind = "cat_strided"
    else:
        dim = node.arg("dim", 0)
        # A stack is a cat of tensors with one dimension more, of size 1, at ``dim``.
        rank = len(result.shape)
        dim = dim % rank if isinstance(dim, int) and rank else 0
        inner = [math.prod(tensor.shape[dim:]) * tensor.itemsize for tensor in tensors]
        kind = "cat_vectorized" if all(n % 16 == 0 for n in inner) else "cat"
    kernels = max(1, work.kernels or 1)
    one = Kernel(
        kind,
        nbytes / kernels,
        max((t.numel for t in tensors), default=0) * len(tensors) / STRIDED_BLOCK / kernels,
        len(result.shape),
    )
    return [one] * kernels


@launches("aten.constant_pad_nd", "aten.slice_backward", "aten.select_backward")
def fills_then_copies(node: OpNode, _work: Work, _target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    shape = source.shape if len(source.shape) == len(result.shape) else None
    if shape is None:
        return [flat("fill", result), Kernel("strided", 2.0 * source.nbytes, source.numel / STRIDED_BLOCK, 2)]
    region = replace(result, shape=shape)
    return [flat("fill", result), copy(source, region)]


@launches("aten.flip", "aten.roll", "aten.tril", "aten.triu", "aten.repeat", "aten.pixel_shuffle")
def rearranges(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    result = node.outputs[0]
    nbytes = float(node.inputs[0].nbytes + result.nbytes)
    count = max(1, work.kernels or 1)
    kind = {"aten.flip": "flip", "aten.roll": "roll"}.get(node.facts.packet, "rearranging")
    one = Kernel(kind, nbytes, result.numel / STRIDED_BLOCK, min(3, len(result.shape)))
    # A roll passes over everything once a dimension; the others' launches are parts of one pass.
    return [one] * count if kind == "roll" else pieces(one, count)
