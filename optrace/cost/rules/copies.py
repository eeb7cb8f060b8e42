"""Copies, casts, fills and factories: bytes move or appear, no arithmetic is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import (
    contiguous,
    contiguous_copies,
    contiguous_kernels,
    contiguous_strides,
    copies_as_memcpy,
    copy_launches,
    fits_32_bit_index,
    is_channels_last,
    suggests_channels_last,
)
from optrace.cost.rules.radix import radix_sort, scan
from optrace.cost.rules.reduce_config import reduction
from optrace.cost.rules.table import (
    inputs_read,
    on_device,
    outputs_written,
    pointwise_kernels,
    rule,
    streaming,
    whole,
)
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import FREE, Access, KernelKind, Pass, Work
from optrace.graph import OpNode, TensorMeta


@rule(
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.empty_permuted",
    "aten._efficientzerotensor",
    "aten.new_empty",
    "aten.new_empty_strided",
    "aten.resize_",
    "aten.resize_as_",
    "aten.set_",
    "aten.record_stream",
    "aten.is_pinned",
    "aten.is_same_size",
    "aten.is_coalesced",
    "aten.dense_dim",
    "aten.sparse_dim",
    "aten._assert_tensor_metadata",
    "aten._pin_memory",
    "aten.sym_size",
    "aten.sym_numel",
    "aten.sym_stride",
    "aten.sym_storage_offset",
    "aten.as_strided_",
    "aten.detach_",
    "aten.squeeze_",
    "aten.t_",
    "aten.transpose_",
    "aten.unsqueeze_",
)
def allocates_only(_node: OpNode, _target: Target) -> Work:
    """Memory is handed out or described, in place too; no kernel runs."""
    return FREE


@rule(
    "aten.zeros",
    "aten.zeros_like",
    "aten.new_zeros",
    "aten.ones",
    "aten.ones_like",
    "aten.new_ones",
    "aten.full",
    "aten.full_like",
    "aten.new_full",
    "aten.fill",
    "aten.fill_",
    "aten.zero_",
    "aten.arange",
    "aten.linspace",
    "aten.logspace",
    "aten.scalar_tensor",
    "aten.tril_indices",
    "aten.triu_indices",
)
def writes_without_reading(node: OpNode, _target: Target) -> Work:
    """A fill overwrites its destination unread (FillKernel.cu, RangeFactories.cu)."""
    written = {access.tensor.id for access in outputs_written(node)}
    reads = [
        access
        for access in inputs_read(node)
        if access.tensor.id not in written and node.op.startswith("aten.fill")
    ]
    result = outputs_written(node)
    kernels = sum(kernels_over(access.tensor.shape, access.tensor) for access in result)
    return streaming(node, kernels=kernels, reads=reads, kind="elementwise")


@rule("aten.eye")
def zeros_then_diagonal(node: OpNode, _target: Target) -> Work:
    """Fill with zeros, fill the diagonal with ones (TensorFactories.cu)."""
    return streaming(node, kernels=2, kind="elementwise")


@rule("aten.randperm")
def sorts_random_keys(node: OpNode, _target: Target) -> Work:
    """Numbers in order, random keys, a radix sort on as many key bits as make ties rare, ties shuffled
    (Randperm.cu)."""
    n = node.outputs[0].numel
    if n == 0:
        return FREE
    # log2(n - (6 n^2 + 1) / log(0.9^12)): at most one tie in ten permutations.
    bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (12 * math.log(0.9)))))
    sort = radix_sort(n, key_bytes=4 if bits <= 32 else 8, value_bytes=node.outputs[0].itemsize, bits=bits)
    return streaming(node, kernels=3 + sort.kernels, memsets=sort.memsets, reads=(), kind="gather")


@rule(
    "aten.bernoulli",
    "aten.bernoulli_",
    "aten.exponential_",
    "aten.geometric_",
    "aten.log_normal_",
    "aten.normal",
    "aten.normal_",
    "aten.rand",
    "aten.rand_like",
    "aten.randint",
    "aten.randint_like",
    "aten.randn",
    "aten.randn_like",
    "aten.random_",
    "aten.uniform_",
    "aten.cauchy_",
)
def fills_with_random_numbers(node: OpNode, _target: Target) -> Work:
    """One kernel of counter-based random numbers (DistributionTemplates.h); an in-place one reads nothing.
    ``normal`` with tensors scales and shifts after it: a kernel for the spread, one for the mean."""
    written = outputs_written(node)
    ids = {access.tensor.id for access in written}
    reads = [access for access in inputs_read(node) if access.tensor.id not in ids and "like" not in node.op]
    scaled = len(reads) if node.facts.packet == "aten.normal" else 0
    one = sum(kernels_over(access.tensor.shape, access.tensor) for access in written)
    return streaming(
        node,
        kernels=one * (1 + scaled),
        reads=reads,
        kind="elementwise",
        flops=(1 + scaled) * sum(access.tensor.numel for access in written),
    )


@rule("aten.copy_", "aten._to_copy", "aten.clone", "aten.lift_fresh_copy")
def copies(node: OpNode, _target: Target) -> Work:
    """One pass, or one memcpy between host and device; the destination is not read (Copy.cu).

    A copy within the device of one run of bytes to another is a memcpy too. Across the bus, the device's side
    is gathered into one run by a kernel first, or spread out by one after; dtypes are converted on the host.
    Without ``non_blocking`` such a copy makes the host wait. A tensor is not copied onto itself.
    """
    if node.facts.packet == "aten.copy_":
        source, destination = node.tensor("src"), node.tensor("self")
    else:
        source, destination = node.inputs[0], node.outputs[0]
    if not destination.numel or source.id == destination.id:
        return FREE
    if on_device(source) != on_device(destination):
        device_side = source if on_device(source) else destination
        same_run = copies_as_memcpy(source, destination)
        touched = (whole(device_side),)
        return Work(
            kernels=0 if same_run else contiguous_kernels(device_side),
            memcpys=1,
            reads=touched if on_device(source) else (),
            writes=() if on_device(source) else touched,
            kind="copy",
            host_wait=not node.arg("non_blocking", False),
        )
    kernels, memcpys = copy_launches(source, destination)
    transposing = source.shape == destination.shape and source.stride != destination.stride
    kind: KernelKind = "copy" if memcpys else "transpose" if transposing else "elementwise"
    return streaming(
        node,
        kernels=kernels,
        memcpys=memcpys,
        reads=[whole(source)],
        writes=[whole(destination)],
        kind=kind,
    )


#: Inputs that one launch of the batched copy takes: contiguous ones, and strided ones, whose strides it carries
#: along; and the dimensions it handles (Shape.cu).
CAT_BATCH = 128
CAT_STRIDED_BATCH = CAT_BATCH // 2
CAT_MAX_DIMS = 4


def cat_launches(tensors: Sequence[TensorMeta], result: TensorMeta) -> tuple[int, int]:
    """(kernels, memcpys) of writing ``tensors`` one behind the other (``cat_out_cuda``)."""
    filled = [tensor for tensor in tensors if tensor.numel]
    channels_last = all(suggests_channels_last(tensor) for tensor in filled)
    in_order = all(is_channels_last(tensor) if channels_last else tensor.is_contiguous for tensor in filled)
    batched = (
        len(tensors) > 1
        and len(result.shape) <= CAT_MAX_DIMS
        and fits_32_bit_index(result)
        and all(fits_32_bit_index(tensor) and tensor.dtype == result.dtype for tensor in filled)
    )
    if batched and in_order:
        return -(-len(tensors) // CAT_BATCH), 0
    if batched and not channels_last:
        return -(-len(tensors) // CAT_STRIDED_BATCH), 0
    launches = [copy_launches(tensor, replace(result, shape=tensor.shape)) for tensor in filled]
    return sum(kernels for kernels, _ in launches), sum(memcpys for _, memcpys in launches)


@rule("aten.cat")
def concatenates(node: OpNode, _target: Target) -> Work:
    """Batched copies, or one copy an input (Shape.cu)."""
    kernels, memcpys = cat_launches(node.tensors("tensors"), node.outputs[0])
    return streaming(node, kernels=kernels, memcpys=memcpys, kind="elementwise")


@rule("aten.stack")
def stacks(node: OpNode, _target: Target) -> Work:
    """A ``cat`` along the dimension before which the new one stands, or, for a last one, of inputs that have it
    already (TensorShape.cpp)."""
    tensors, result = node.tensors("tensors"), node.outputs[0]
    rank = len(tensors[0].shape)
    dim = node.arg("dim", 0)
    dim = dim % (rank + 1) if isinstance(dim, int) else 0
    if dim < rank:
        shape = list(tensors[0].shape)
        shape[dim] *= len(tensors)
        joined = replace(result, shape=tuple(shape), stride=contiguous_strides(shape))
    else:
        joined = result
        tensors = tuple(replace(t, shape=(*t.shape, 1), stride=(*t.stride, 1)) for t in tensors)
    kernels, memcpys = cat_launches(tensors, joined)
    return streaming(node, kernels=kernels, memcpys=memcpys, kind="elementwise")


def _fill_then_copy(node: OpNode, source: TensorMeta, region: TensorMeta) -> Work:
    """Fill the result, then copy ``source`` into a region of it."""
    result = node.outputs[0]
    kernels, memcpys = copy_launches(source, region)
    return streaming(
        node,
        kernels=kernels_over(result.shape, result) + kernels,
        memcpys=memcpys,
        kind="elementwise",
        passes=(
            Pass((), (whole(result),)),
            Pass((whole(source),), (whole(region),), is_copy=memcpys > 0),
        ),
    )


@rule("aten.constant_pad_nd")
def pads_with_a_constant(node: OpNode, _target: Target) -> Work:
    """Fills the output, then copies the input into its middle; only cropping is a clone (PadNd.cpp)."""
    source, result = node.inputs[0], node.outputs[0]
    pad = node.arg("pad")
    sizes = [n for n in pad if isinstance(n, int)] if isinstance(pad, tuple) else []
    cropped = replace(source, shape=tuple(min(pair) for pair in zip(source.shape, result.shape, strict=True)))
    if all(size <= 0 for size in sizes):
        kernels, memcpys = copy_launches(cropped, result)
        return streaming(node, kernels=kernels, memcpys=memcpys, reads=[whole(cropped)], kind="elementwise")
    return _fill_then_copy(node, cropped, replace(result, shape=cropped.shape))


@rule("aten.slice_backward")
def zeros_then_slice(node: OpNode, _target: Target) -> Work:
    """Zeros, then the gradient copied into its slice (FunctionsManual: ``slice_backward``)."""
    gradient, result = node.inputs[0], node.outputs[0]
    dim, step = node.arg("dim", 0), node.arg("step", 1)
    strides = list(result.stride)
    if isinstance(dim, int) and isinstance(step, int):
        strides[dim] *= step
    return _fill_then_copy(node, gradient, replace(result, shape=gradient.shape, stride=tuple(strides)))


@rule("aten.select_backward")
def zeros_then_selected(node: OpNode, _target: Target) -> Work:
    """Zeros, then the gradient copied to the place that was selected."""
    gradient, result = node.inputs[0], node.outputs[0]
    dim = node.arg("dim", 0)
    dim = dim % len(result.shape) if isinstance(dim, int) else 0
    strides = (*result.stride[:dim], *result.stride[dim + 1 :])
    return _fill_then_copy(node, gradient, replace(result, shape=gradient.shape, stride=strides))


@rule("aten.diag_embed", "aten.diagonal_backward")
def zeros_then_a_diagonal(node: OpNode, _target: Target) -> Work:
    """Zeros, then a copy onto the diagonal (TensorShape.cpp)."""
    result = node.outputs[0]
    return streaming(node, kernels=kernels_over(result.shape, result) + 1, kind="elementwise")


@rule("aten.block_diag")
def zeros_then_each_block(node: OpNode, _target: Target) -> Work:
    """Zeros, then one copy a matrix (TensorShape.cpp)."""
    return streaming(node, kernels=1 + len(node.tensors("tensors")), kind="elementwise")


@rule(
    "aten.alias_copy",
    "aten.as_strided_copy",
    "aten.detach_copy",
    "aten.diagonal_copy",
    "aten.expand_copy",
    "aten.narrow_copy",
    "aten.permute_copy",
    "aten.select_copy",
    "aten.slice_copy",
    "aten.squeeze_copy",
    "aten.t_copy",
    "aten.transpose_copy",
    "aten.unfold_copy",
    "aten.unsqueeze_copy",
    "aten.view_copy",
)
def clones_a_view(node: OpNode, _target: Target) -> Work:
    """What a view shows, cloned in its own order: a memcpy where that is the input's, else a kernel."""
    source, result = node.inputs[0], node.outputs[0]
    in_order = source.is_contiguous and node.facts.label in (
        "alias_copy",
        "detach_copy",
        "squeeze_copy",
        "unsqueeze_copy",
        "view_copy",
    )
    shown = Access(source, min(source.nbytes, result.nbytes))
    return streaming(
        node,
        kernels=0 if in_order else kernels_over(result.shape, result),
        memcpys=int(in_order),
        reads=[shown],
        kind="copy" if in_order else "elementwise",
    )


@rule("aten.slice_scatter", "aten.select_scatter", "aten.diagonal_scatter", "aten.as_strided_scatter")
def clones_then_overwrites(node: OpNode, _target: Target) -> Work:
    """A clone, then ``src`` copied into the part of it that the view shows (FunctionalizeFallback,
    TensorShape.cpp)."""
    source, result = node.inputs[0], node.outputs[0]
    kernels, memcpys = copy_launches(source, result)
    part = node.tensor("src")
    region = replace(result, shape=part.shape)
    along_rows = len(part.shape) == len(result.shape) and part.shape[1:] == result.shape[1:]
    more_kernels, more_memcpys = copy_launches(part, region) if along_rows else (1, 0)
    return streaming(node, kernels=kernels + more_kernels, memcpys=memcpys + more_memcpys, kind="elementwise")


@rule("aten.roll")
def rolls_one_dim_at_a_time(node: OpNode, _target: Target) -> Work:
    """One kernel a dimension, each over the whole tensor, from a contiguous input (TensorTransformations.cu)."""
    source = node.inputs[0]
    dims = node.arg("dims")
    rounds = max(1, len(dims)) if isinstance(dims, tuple) else 1
    return streaming(
        node,
        kernels=rounds + contiguous_kernels(source),
        kind="elementwise",
        scratch=contiguous_copies(source) + (source.numel * source.itemsize,) * (rounds - 1),
    )


@rule(
    "aten.flip",
    "aten.rot90",
    "aten.repeat",
    "aten.tril",
    "aten.triu",
    "aten.tril_",
    "aten.triu_",
    "aten.pixel_shuffle",
    "aten.pixel_unshuffle",
    "aten.channel_shuffle",
)
def rearranges(node: OpNode, _target: Target) -> Work:
    """Elements change places in one pass (TensorTransformations.cu, TensorShape.cpp, TriangularOps.cu)."""
    return streaming(node, kernels=pointwise_kernels(node), kind="elementwise")


#: Planes and samples that one launch of a padding kernel takes (ReflectionPad.cu, ReplicationPadding.cu).
PAD_PLANES_A_LAUNCH = 65535


@rule(
    "aten.reflection_pad1d",
    "aten.reflection_pad2d",
    "aten.reflection_pad3d",
    "aten.replication_pad1d",
    "aten.replication_pad2d",
    "aten.replication_pad3d",
)
def pads_by_repeating(node: OpNode, _target: Target) -> Work:
    """One kernel that reads each output element's source, from a contiguous input."""
    source = node.inputs[0]
    return streaming(
        node,
        kernels=-(-source.shape[0] // PAD_PLANES_A_LAUNCH) + contiguous_kernels(source),
        kind="elementwise",
        scratch=contiguous_copies(source),
    )


@rule(
    "aten.reflection_pad1d_backward",
    "aten.reflection_pad2d_backward",
    "aten.reflection_pad3d_backward",
    "aten.replication_pad1d_backward",
    "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)
def pads_by_repeating_backward(node: OpNode, _target: Target) -> Work:
    """Zero the gradient, then add to it with atomics (ReflectionPad.cu, ReplicationPadding.cu)."""
    gradient = node.inputs[0]
    return streaming(
        node,
        kernels=2 + contiguous_kernels(gradient),
        reads=[whole(gradient)],
        flops=gradient.numel,
        kind="elementwise",
        scratch=contiguous_copies(gradient),
    )


@rule("aten.repeat_interleave")
def repeats_each(node: OpNode, target: Target) -> Work:
    """Positions of repeats: a scan, then one kernel that writes them. Without ``output_size`` the host reads the
    total, and whether all are positive (Repeat.cpp, Repeat.cu)."""
    repeats = node.inputs[0]
    launches = scan(repeats.numel)
    if isinstance(node.arg("output_size"), int):
        return streaming(node, kernels=launches + 1, flops=repeats.numel, kind="gather")
    checked = reduction(contiguous(repeats, dtype="bool"), (), target)
    return streaming(
        node,
        kernels=launches + 1 + 1 + checked.kernels,
        memsets=checked.memsets,
        memcpys=2,
        flops=3 * repeats.numel,
        kind="gather",
        host_wait=True,
    )


@rule("aten._local_scalar_dense", "aten.item")
def reads_one_value(node: OpNode, _target: Target) -> Work:
    """Four to sixteen bytes come to the host, which waits for them (Scalar.cu)."""
    return Work(kernels=0, memcpys=1, reads=(whole(node.inputs[0]),), kind="copy", host_wait=True)
