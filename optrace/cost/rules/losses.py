"""Losses: a pointwise pass over scores and targets, then a reduction where ``reduction`` asks for one."""

from __future__ import annotations

from collections.abc import Sequence

from optrace.cost.profiles import Target
from optrace.cost.rules.layouts import contiguous, contiguous_copies, contiguous_kernels
from optrace.cost.rules.reduce_config import Reduction
from optrace.cost.rules.reductions import sums
from optrace.cost.rules.table import elements_written, pointwise_kernels, rule, streaming
from optrace.cost.rules.tensor_iterator import kernels_over
from optrace.cost.work import Access, Work
from optrace.graph import OpNode, TensorMeta

#: ``at::Reduction``.
NONE, MEAN = 0, 1

#: Pointwise kernels of a loss before its reduction, and FLOPs an element (Loss.cpp).
_STEPS = {
    "aten.mse_loss": (1, 2),
    "aten.smooth_l1_loss": (1, 3),
    "aten.huber_loss": (1, 3),
    # neg, mul, exp, add, log
    "aten.soft_margin_loss": (5, 5),
}


def _reduced(node: OpNode, losses: TensorMeta, target: Target) -> Reduction:
    """The sum or mean of one loss an element, unless ``reduction`` is none."""
    return Reduction() if node.arg("reduction", MEAN) == NONE else sums(contiguous(losses), (), target)


@rule(*_STEPS)
def loss_then_reduce(node: OpNode, target: Target) -> Work:
    """The losses, then their mean or sum (Loss.cpp)."""
    scores = node.inputs[0]
    steps, each = _STEPS[node.facts.packet]
    reduced = _reduced(node, scores, target)
    return streaming(
        node,
        kernels=steps * kernels_over(scores.shape, *node.inputs) + reduced.kernels,
        memsets=reduced.memsets,
        flops=(each + 1) * scores.numel,
        kind="reduction" if reduced.kernels else "elementwise",
        scratch=(scores.numel * scores.itemsize,) * (steps if reduced.kernels else steps - 1),
    )


@rule("aten.binary_cross_entropy")
def cross_entropy_of_probabilities(node: OpNode, target: Target) -> Work:
    """The losses, times the weight if there is one, reduced, copied into the result (Loss.cu)."""
    scores = node.inputs[0]
    reduced = _reduced(node, scores, target)
    weighted = isinstance(node.arg("weight"), TensorMeta)
    return streaming(
        node,
        kernels=(1 + weighted) * kernels_over(scores.shape, scores) + reduced.kernels,
        memsets=reduced.memsets,
        memcpys=1 if reduced.kernels else 0,
        flops=(5 + weighted) * scores.numel,
        kind="reduction" if reduced.kernels else "elementwise",
        scratch=(scores.numel * scores.itemsize,) if reduced.kernels else (),
    )


@rule("aten.binary_cross_entropy_backward")
def cross_entropy_of_probabilities_backward(node: OpNode, _target: Target) -> Work:
    """The gradients, times the weight, over their number for a mean (Loss.cu)."""
    passes = 1 + isinstance(node.arg("weight"), TensorMeta) + (node.arg("reduction", MEAN) == MEAN)
    return streaming(
        node,
        kernels=passes * pointwise_kernels(node),
        flops=(4 + passes) * elements_written(node),
        kind="elementwise",
    )


@rule("aten.binary_cross_entropy_with_logits")
def cross_entropy_of_logits(node: OpNode, target: Target) -> Work:
    """log_sigmoid, 1 - target, times the input, minus; four more with ``pos_weight``, one with ``weight``
    (Loss.cpp)."""
    scores = node.inputs[0]
    passes = 4
    passes += 4 if isinstance(node.arg("pos_weight"), TensorMeta) else 0
    passes += 1 if isinstance(node.arg("weight"), TensorMeta) else 0
    reduced = _reduced(node, scores, target)
    return streaming(
        node,
        kernels=passes * kernels_over(scores.shape, scores) + reduced.kernels,
        memsets=reduced.memsets,
        flops=(passes + 1) * scores.numel,
        kind="reduction" if reduced.kernels else "elementwise",
        scratch=(scores.numel * scores.itemsize,) * (passes - 1),
    )


def _picked(scores: TensorMeta, others: Sequence[TensorMeta]) -> list[Access]:
    """One score a target is read, and all of the others."""
    picked = min(scores.nbytes, others[0].numel * scores.itemsize)
    return [Access(scores, picked), *(Access(other, other.nbytes) for other in others)]


@rule("aten.nll_loss_forward")
def picks_log_probabilities(node: OpNode, _target: Target) -> Work:
    """One block adds up one score a target; unreduced losses are written one each, and the total weight is
    cleared (NLLLoss.cu)."""
    scores, others = node.inputs[0], node.inputs[1:]
    unreduced = node.arg("reduction", MEAN) == NONE and len(scores.shape) == 2
    return streaming(
        node,
        kernels=2 if unreduced else 1,
        reads=_picked(scores, others),
        flops=others[0].numel,
        kind="reduction",
    )


@rule("aten.nll_loss2d_forward")
def picks_log_probabilities_of_pixels(node: OpNode, _target: Target) -> Work:
    """Unreduced: one kernel. Otherwise both results are cleared, losses added up, and divided for a mean
    (NLLLoss2d.cu)."""
    scores, others = node.inputs[0], node.inputs[1:]
    how = node.arg("reduction", MEAN)
    copied = () if how == NONE else (scores, others[0])
    return streaming(
        node,
        kernels=(1 if how == NONE else 4 if how == MEAN else 3) + contiguous_kernels(*copied),
        reads=_picked(scores, others),
        flops=others[0].numel,
        kind="reduction",
        scratch=contiguous_copies(*copied),
    )


@rule("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def scatters_loss_gradient(node: OpNode, _target: Target) -> Work:
    """Zero the gradient, then write one value a target (NLLLoss.cu, NLLLoss2d.cu)."""
    targets = node.tensor("target")
    gradient = node.outputs[0]
    return streaming(
        node,
        kernels=kernels_over(gradient.shape, gradient) + 1,
        flops=targets.numel,
        kind="elementwise",
        reads=[Access(tensor, tensor.nbytes) for tensor in (node.inputs[0], targets)],
    )
