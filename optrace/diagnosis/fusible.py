"""What a compiler of the kind of Inductor makes of an op: an expression, a reduction, or a call of a library.

The tables follow the lowerings and decompositions of torch/_inductor (2.11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta

#: ``view``: no work. ``pointwise``: an expression of its inputs, computed where it is used. ``reduction``: sums
#: over rows, then perhaps an expression of them. ``scatter``: a clear and a kernel of atomic writes.
#: ``foreach``: a pointwise op over lists. ``extern``: a kernel of a library, or one nobody can look into.
Role = Literal["view", "pointwise", "reduction", "scatter", "foreach", "extern"]

#: Expressions that torch does not tag ``pointwise``: copies, fills, gathers, windows small enough to unroll.
POINTWISE = frozenset(
    f"aten.{name}"
    for name in (
        "_adaptive_avg_pool2d_backward",
        "_to_copy",
        "arange",
        "avg_pool2d",
        "bernoulli",
        "bernoulli_",
        "cat",
        "clone",
        "constant_pad_nd",
        "copy_",
        "embedding",
        "eye",
        "fill_",
        "flip",
        "floor_divide",
        "full",
        "full_like",
        "gather",
        "hardswish",
        "hardswish_",
        "hardswish_backward",
        "index",
        "index_select",
        "linspace",
        "masked_fill",
        "masked_fill_",
        "max_pool2d_with_indices",
        "native_dropout",
        "new_full",
        "new_ones",
        "new_zeros",
        "nll_loss_backward",
        "normal_",
        "one_hot",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "reflection_pad2d",
        "repeat",
        "replication_pad2d",
        "roll",
        "scalar_tensor",
        "select_backward",
        "slice_backward",
        "stack",
        "tril",
        "triu",
        "uniform_",
        "upsample_bilinear2d",
        "upsample_nearest2d",
        "where",
        "zero_",
        "zeros",
        "zeros_like",
    )
)

#: Reductions that torch does not tag so. Those of the second table give a tensor as large as their input.
REDUCTIONS = frozenset(
    f"aten.{name}"
    for name in (
        "linalg_vector_norm",
        "norm",
        "nll_loss2d_forward",
        "nll_loss_forward",
        "var_mean",
        "_adaptive_avg_pool2d",
    )
)
NORMALIZATIONS = frozenset(
    f"aten.{name}"
    for name in (
        "_fused_rms_norm",
        "_log_softmax",
        "_log_softmax_backward_data",
        "_softmax",
        "_softmax_backward_data",
        "cudnn_batch_norm",
        "cudnn_batch_norm_backward",
        "cumsum",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "native_layer_norm",
        "native_layer_norm_backward",
    )
)

SCATTERS = frozenset(
    f"aten.{name}"
    for name in (
        "embedding_dense_backward",
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "index_put",
        "index_put_",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
    )
)

#: Expressions of elements at other places than the result's own, even where shapes agree.
DISPLACED = frozenset(
    f"aten.{name}"
    for name in (
        "flip",
        "gather",
        "index",
        "index_select",
        "nll_loss2d_forward",
        "nll_loss_forward",
        "reflection_pad2d",
        "roll",
        "take",
        "upsample_bilinear2d",
        "upsample_nearest2d",
    )
)

#: Made anew each time: never the same value twice.
RANDOM = frozenset(
    f"aten.{name}"
    for name in (
        "bernoulli",
        "bernoulli_",
        "native_dropout",
        "normal_",
        "rand",
        "rand_like",
        "randn",
        "randn_like",
        "uniform_",
    )
)

#: Written without being read, though the schema says that the argument is changed.
OVERWRITES = frozenset(
    f"aten.{name}" for name in ("bernoulli_", "copy_", "fill_", "normal_", "uniform_", "zero_")
)

#: Arithmetic that a generated kernel does for each random number: it runs the ten rounds of Philox for each
#: element and keeps one of the four numbers they give. From the toy blocks of two
#: sizes on an H200: about 4 ps an element.
RANDOM_FLOPS = 260

#: Reductions to a maximum and a sum of exponentials.
SOFTMAXES = frozenset({"aten._log_softmax", "aten._softmax", "aten.logsumexp"})

#: Arithmetic for each element of a row that is passed over in a loop with both kept at once: each new maximum scales the
#: sum. From the loss over a vocabulary of 32,000 on an H200: about 2 ps an element.
ONLINE_SOFTMAX_FLOPS = 140

#: Operations of an expression: where many are needed it is stored sooner. One where nothing else is said.
_OPERATIONS = {
    "aten.gelu": 8,
    "aten.gelu_backward": 14,
    "aten.native_dropout": 6,
    "aten.silu": 4,
    "aten.silu_backward": 6,
    "aten.tanh_backward": 3,
    "aten.upsample_bilinear2d": 30,
    "aten.native_layer_norm": 6,
    "aten.native_group_norm": 6,
    "aten.cudnn_batch_norm": 8,
    "aten.native_batch_norm": 8,
    "aten.max_pool2d_with_indices": 20,
    "aten.avg_pool2d": 10,
}

_MAX_WINDOW = 25


def role_of(node: OpNode, work: Work) -> Role:
    """The role of a call that runs on the device (one that does not is ``extern``)."""
    packet = node.facts.packet
    if node.is_view or packet in ("aten.lift_fresh", "aten.alias"):
        return "view"
    if (
        work.host_wait
        or work.source == "unknown"
        or not any(on_device(t) for t in node.outputs or node.inputs)
    ):
        return "extern"
    if packet.startswith("aten._foreach_"):
        return "foreach"
    if packet in SCATTERS:
        return "scatter"
    if packet in ("aten.cudnn_batch_norm", "aten.native_batch_norm") and node.arg("training") is False:
        return "pointwise"
    if packet in NORMALIZATIONS or packet in REDUCTIONS or "reduction" in node.facts.tags:
        return "reduction"
    if packet in ("aten.max_pool2d_with_indices", "aten.avg_pool2d"):
        return "pointwise" if _window(node) <= _MAX_WINDOW else "extern"
    if packet in POINTWISE or "pointwise" in node.facts.tags:
        return "pointwise"
    return "extern" if work.launches else "pointwise"


def on_device(tensor: TensorMeta) -> bool:
    return tensor.device not in ("cpu", "meta")


def operations(node: OpNode) -> int:
    """How many operations an element of the expression takes, about."""
    return _OPERATIONS.get(node.facts.packet, 1)


@dataclass(frozen=True, slots=True)
class ReductionShape:
    """``rows`` sums of ``length`` elements each; ``inner``: the elements of a sum lie side by side."""

    rows: int
    length: int
    inner: bool


def summed(node: OpNode) -> TensorMeta:
    """The tensor whose elements a reduction runs over: a loss picks one element for each of its targets."""
    if node.facts.packet in ("aten.nll_loss_forward", "aten.nll_loss2d_forward"):
        return node.tensor("target")
    return max(node.inputs, key=lambda tensor: tensor.numel)


def reduction_shape(node: OpNode) -> ReductionShape:
    """What a reduction sums over. Batch norm sums each channel, layer and group norm and softmax their rows."""
    source = summed(node)
    total = source.numel
    packet = node.facts.packet
    rank = len(source.shape)
    if packet in ("aten.native_layer_norm", "aten.native_layer_norm_backward", "aten._fused_rms_norm"):
        shape = node.arg("normalized_shape")
        length = (
            math.prod(n for n in shape if isinstance(n, int))
            if isinstance(shape, tuple)
            else source.shape[-1]
        )
        return _shape(total, length, inner=True)
    if packet in ("aten.native_group_norm", "aten.native_group_norm_backward"):
        groups, batch = node.arg("group"), source.shape[0]
        rows = batch * groups if isinstance(groups, int) else batch
        return _shape(total, total // max(1, rows), inner=True)
    if "batch_norm" in packet:
        channels = source.shape[1] if rank > 1 else 1
        return _shape(total, total // max(1, channels), inner=False)
    dims = node.arg("dim")
    if isinstance(dims, int):
        dims = (dims,)
    if packet == "aten._adaptive_avg_pool2d":
        dims = (-1, -2)
    if not isinstance(dims, tuple) or not dims or not rank:
        return _shape(total, total, inner=True)
    reduced = {d % rank for d in dims if isinstance(d, int)}
    length = math.prod(source.shape[d] for d in reduced)
    strides = [(source.stride[d], d) for d in range(rank) if source.shape[d] > 1 and source.stride[d]]
    return _shape(total, length, inner=not strides or min(strides)[1] in reduced)


def _shape(total: int, length: int, *, inner: bool) -> ReductionShape:
    return ReductionShape(max(1, total // max(1, length)), length, inner)


def _window(node: OpNode) -> int:
    size = node.arg("kernel_size")
    if isinstance(size, int):
        return size * size
    sizes = [n for n in size if isinstance(n, int)] if isinstance(size, tuple) else []
    return math.prod(sizes) if len(sizes) != 1 else sizes[0] ** 2


def split_factor(shape: ReductionShape, sm_count: int) -> int:
    """Into how many parts each row is cut for want of rows to fill the GPU with; 1: it is not. What the parts give
    is reduced by a further kernel (torch/_inductor/choices.py, ``reduction_split_factor``)."""
    threads_per_sm, threads = 2048, 256
    least = 32 * sm_count * threads_per_sm
    most = 512 * sm_count * threads_per_sm
    total = shape.rows * shape.length
    if shape.inner or shape.rows == 1:
        if shape.rows >= 2 * sm_count or shape.length <= 8192:
            return 1
        if total <= least:
            size = 32
        elif total < most:
            blocks = -(-sm_count * threads_per_sm // (2 * threads) // shape.rows)
            size = max(32, -(-shape.length // (threads * blocks)))
        else:
            size = 512
        return -(-shape.length // (size * threads))
    if shape.length <= 32 or shape.rows >= 64 * sm_count:
        return 1
    if total < least:
        size = 32
    elif total < most:
        blocks = -(-(sm_count * threads_per_sm // threads) // -(-shape.rows // 128))
        size = max(32, -(-shape.length // (4 * blocks)))
    else:
        size = 512
    return -(-shape.length // (4 * size))
