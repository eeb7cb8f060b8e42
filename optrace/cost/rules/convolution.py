"""Convolutions through cuDNN: an implicit GEMM, counted by multiply-adds.

The layout transforms that cuDNN puts around some of them are not counted here yet: one kernel a pass.
"""

from __future__ import annotations

import math

from optrace.cost.profiles import Target
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode, TensorMeta


def _multiply_adds(node: OpNode, large: TensorMeta, small: TensorMeta, weight: TensorMeta) -> int:
    """Each weight meets each position of the convolution's output (of its input, when transposed) once a sample.

    ``weight`` is [out, in / groups, kernel...]; transposed [in, out / groups, kernel...]: its elements times
    samples times positions either way.
    """
    transposed = bool(node.arg("transposed", False))
    positions = math.prod((large if transposed else small).shape[2:])
    return weight.numel * positions * large.shape[0]


@rule("aten.convolution", "aten._convolution", "aten.cudnn_convolution", "aten.convolution_overrideable")
def convolves(node: OpNode, _target: Target) -> Work:
    """cuDNN adds no bias: a bias is one more pass over the output (Convolution.cpp)."""
    data, weight = node.inputs[:2]
    flops = 2 * _multiply_adds(node, data, node.outputs[0], weight)
    biased = node.arg("bias") is not None
    return streaming(
        node,
        kernels=2 if biased else 1,
        flops=flops + (node.outputs[0].numel if biased else 0),
        matmul_flops=flops,
        kind="convolution",
        math_dtype=data.dtype,
    )


@rule("aten.convolution_backward")
def convolves_backward(node: OpNode, _target: Target) -> Work:
    """One pass for each gradient that is wanted: input, weight; the bias is a reduction."""
    gradient, data, weight = node.inputs[:3]
    wanted = node.arg("output_mask", (True, True, True))
    assert isinstance(wanted, tuple)
    passes = sum(bool(flag) for flag in wanted[:2])
    flops = 2 * _multiply_adds(node, data, gradient, weight) * passes
    return streaming(
        node,
        kernels=max(1, passes + bool(wanted[2])),
        flops=flops + (gradient.numel if wanted[2] else 0),
        matmul_flops=flops,
        kind="convolution",
        math_dtype=data.dtype,
    )
