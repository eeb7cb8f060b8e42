"""Copies, casts, fills and factories: bytes move or appear, no arithmetic is done."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.table import inputs_read, on_device, outputs_written, rule, streaming, whole
from optrace.cost.work import FREE, Work
from optrace.graph import OpNode


@rule(
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.empty_permuted",
    "aten.new_empty",
    "aten.new_empty_strided",
    "aten.resize_",
    "aten.set_",
    "aten.record_stream",
    "aten.is_pinned",
    "aten._pin_memory",
    "aten.sym_size",
    "aten.sym_numel",
    "aten.sym_stride",
    "aten.sym_storage_offset",
)
def allocates_only(_node: OpNode, _target: Target) -> Work:
    """Memory is handed out or described; no kernel runs."""
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
    "aten.eye",
    "aten.scalar_tensor",
    "aten.tril_indices",
    "aten.triu_indices",
    "aten.randperm",
)
def writes_without_reading(node: OpNode, _target: Target) -> Work:
    """A fill overwrites its destination unread (FillKernel.cu, RangeFactories.cu)."""
    written = {access.tensor.id for access in outputs_written(node)}
    reads = [
        access
        for access in inputs_read(node)
        if access.tensor.id not in written and node.op.startswith("aten.fill")
    ]
    return streaming(node, reads=reads, kind="elementwise")


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
    """One kernel of counter-based random numbers (DistributionTemplates.h); an in-place one reads nothing."""
    written = outputs_written(node)
    ids = {access.tensor.id for access in written}
    reads = [access for access in inputs_read(node) if access.tensor.id not in ids and "like" not in node.op]
    return streaming(node, reads=reads, kind="elementwise", flops=sum(a.tensor.numel for a in written))


@rule("aten.copy_", "aten._to_copy", "aten.clone", "aten.lift_fresh_copy", "aten.contiguous")
def copies(node: OpNode, _target: Target) -> Work:
    """One pass, or one memcpy between host and device; the destination is not read (Copy.cu).

    A plain contiguous copy of equal dtypes is a memcpy on the device. Without ``non_blocking`` a copy
    across the bus makes the host wait.
    """
    if node.facts.packet == "aten.copy_":
        source, destination = node.tensor("src"), node.tensor("self")
    else:
        source, destination = node.inputs[0], node.outputs[0]
    if on_device(source) != on_device(destination):
        device_side = [whole(tensor) for tensor in (source, destination) if on_device(tensor)]
        return Work(
            kernels=0,
            memcpys=1,
            reads=tuple(device_side) if on_device(source) else (),
            writes=() if on_device(source) else tuple(device_side),
            kind="copy",
            host_wait=not node.arg("non_blocking", False),
        )
    straight = (
        source.dtype == destination.dtype
        and source.is_contiguous
        and destination.is_contiguous
        and source.shape == destination.shape
    )
    reads, writes = [whole(source)], [whole(destination)]
    if straight and source.nbytes:
        return streaming(node, kernels=0, memcpys=1, reads=reads, writes=writes, kind="copy")
    transposing = source.shape == destination.shape and source.stride != destination.stride
    return streaming(node, reads=reads, writes=writes, kind="transpose" if transposing else "elementwise")


@rule("aten.cat", "aten.stack", "aten._chunk_cat")
def concatenates(node: OpNode, _target: Target) -> Work:
    """Batches of up to 128 contiguous inputs a launch (Shape.cu, CatArrayBatchedCopy)."""
    reads = inputs_read(node)
    return streaming(node, kernels=-(-len(reads) // 128), reads=reads, kind="elementwise")


@rule("aten.constant_pad_nd")
def pads_with_a_constant(node: OpNode, _target: Target) -> Work:
    """Fills the output, then copies the input into its middle (PadNd.cpp)."""
    return streaming(node, kernels=2, kind="elementwise")


@rule(
    "aten.flip",
    "aten.roll",
    "aten.repeat",
    "aten.repeat_interleave",
    "aten.tril",
    "aten.triu",
    "aten.tril_",
    "aten.triu_",
    "aten.reflection_pad1d",
    "aten.reflection_pad2d",
    "aten.replication_pad1d",
    "aten.replication_pad2d",
    "aten.replication_pad3d",
    "aten.select_backward",
    "aten.slice_backward",
    "aten.slice_scatter",
    "aten.select_scatter",
    "aten.pixel_shuffle",
    "aten.pixel_unshuffle",
    "aten.channel_shuffle",
    "aten.diag_embed",
    "aten.im2col",
    "aten.block_diag",
)
def rearranges(node: OpNode, _target: Target) -> Work:
    """Elements change places; a gradient of a slice is a fill and a copy (TensorShape.cpp)."""
    backward = node.facts.packet in ("aten.select_backward", "aten.slice_backward")
    return streaming(node, kernels=2 if backward else 1, kind="elementwise")


@rule("aten._local_scalar_dense", "aten.item")
def reads_one_value(node: OpNode, _target: Target) -> Work:
    """Four to sixteen bytes come to the host, which waits for them (Scalar.cu)."""
    return Work(kernels=0, memcpys=1, reads=(whole(node.inputs[0]),), kind="copy", host_wait=True)
