"""Windows over images: pooling, resampling, depthwise convolution; a thread an output."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.cost.device.kernel import Kernel, Launch, launches
from optrace.cost.device.streams import STRIDED_BLOCK, flat, relaid
from optrace.cost.profiles import Target
from optrace.cost.rules.pooling import _window
from optrace.cost.rules.table import outputs_written
from optrace.cost.work import Work
from optrace.graph import OpNode


@launches(
    "aten.max_pool2d_with_indices", "aten.avg_pool2d", "aten.max_pool3d_with_indices", "aten.avg_pool3d",
    "aten.avg_pool1d", "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d", "aten.adaptive_max_pool2d",
)  # fmt: skip
def pools(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    source, result = node.inputs[0], node.outputs[0]
    written = float(sum(access.nbytes for access in outputs_written(node)))
    name = node.facts.packet
    kind = "adaptive_pool" if "adaptive" in name else "max_pool" if "max" in name else "average_pool"
    kind += "_3d" if "3d" in name else ""
    copied = relaid(source) if (work.kernels or 1) > 1 and not source.is_contiguous else []
    count = max(1, (work.kernels or 1) - len(copied))
    one = Kernel(kind, (source.nbytes + written) / count, result.numel / STRIDED_BLOCK / count, _window(node))
    return [*copied, *[one] * count]


@launches(
    "aten.max_pool2d_with_indices_backward", "aten.avg_pool2d_backward", "aten.max_pool3d_with_indices_backward",
    "aten.avg_pool3d_backward", "aten._adaptive_avg_pool2d_backward",
)  # fmt: skip
def pools_backward(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    gradient, result = node.inputs[0], node.outputs[0]
    nbytes = float(work.tensor_bytes)
    kind = "max_pool_backward" if "max" in node.op else "average_pool_backward"
    one = Kernel(kind, nbytes, max(gradient.numel, result.numel) / STRIDED_BLOCK, 1)
    count = max(1, work.kernels or 1)
    return [*[flat("fill", result)] * (count - 1), one]


@launches(
    "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d", "aten.upsample_bilinear2d",
    "aten._upsample_bilinear2d_aa", "aten.upsample_bicubic2d", "aten.upsample_trilinear3d", "aten.upsample_linear1d",
    "aten._upsample_nearest_exact2d", "aten._upsample_bicubic2d_aa",
)  # fmt: skip
def resamples(node: OpNode, work: Work, _target: Target) -> Sequence[Launch]:
    result = node.outputs[0]
    kind = "resample_nearest" if "nearest" in node.op else "resample"
    # A thread a position of the plane, over all images and channels (UpSampleBilinear2d.cu).
    planes = result.shape[0] * result.shape[1] if len(result.shape) > 2 else 1
    return [Kernel(kind, float(work.tensor_bytes), result.numel / planes / STRIDED_BLOCK, planes)]
