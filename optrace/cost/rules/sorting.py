"""Sorts, scans and histograms: several launches whose number depends on the size."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.cost.rules.table import rule, streaming
from optrace.cost.work import Work
from optrace.graph import OpNode


@rule("aten.cumsum", "aten.cumprod", "aten.cummax", "aten.cummin", "aten.logcumsumexp")
def scans(node: OpNode, _target: Target) -> Work:
    """One scan kernel along the dimension, one FLOP an element (ScanUtils.cuh)."""
    return streaming(node, flops=node.inputs[0].numel, kind="reduction")


@rule("aten.sort", "aten.argsort", "aten.topk", "aten.kthvalue", "aten.median", "aten.mode")
def sorts(node: OpNode, _target: Target) -> Work:
    """A bitonic sort in one kernel up to 4,096 elements a row, radix passes above (Sort.cu). The launches of the
    latter are an estimate, and comparisons are not counted as arithmetic."""
    row = node.inputs[0].shape[-1] if node.inputs[0].shape else 1
    return streaming(node, kernels=2 if row <= 4096 else 8, kind="gather")


@rule("aten.bincount", "aten.histc")
def counts(node: OpNode, _target: Target) -> Work:
    """The host waits for the largest value, which sizes the result (SummaryOps.cu)."""
    return streaming(node, kernels=3, memcpys=2, flops=node.inputs[0].numel, kind="gather", host_wait=True)


@rule("aten.multinomial")
def draws(node: OpNode, _target: Target) -> Work:
    """Normalize, scan, search (MultinomialKernel.cu)."""
    return streaming(node, kernels=4, flops=4 * node.inputs[0].numel, kind="gather")


@rule("aten.searchsorted", "aten.bucketize", "aten.isin")
def searches(node: OpNode, _target: Target) -> Work:
    return streaming(node, kind="gather")
