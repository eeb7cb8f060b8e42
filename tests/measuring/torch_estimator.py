"""What torch's RuntimeEstimator says of recorded programs, beside what was measured. No GPU is needed.

    python -m tests.measuring.torch_estimator RECORD

runs the cost model that ``torch.distributed._tools.RuntimeEstimator`` applies to a call in its mode
``operator-level-cost-model`` (``torch.utils._runtime_estimation``) on the shapes of each recorded call, and sums as it
does. It asks the device for its rates; those of an H200 are put in their place: FLOP/s from the profile, and the memory
clock times the bus width that triton would find. Printed twice: as torch has it, which takes TFLOP/s for PFLOP/s so that
arithmetic is a thousandth of what it was meant to be, and with that put right. Bytes of a call that the estimator cannot
price (a list of results with more than one dtype) count nonetheless.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
import torch.utils._runtime_estimation as theirs

from optrace.cost.profiles import find_gpu
from optrace.graph import OpNode, TensorMeta, Value
from optrace.measuring.accuracy import Distribution, Pair
from optrace.measuring.record import MeasuredRun, read_runs

#: 2 transfers x 3,201 MHz x 6,144 bits, in GB/s.
DRAM_GB_S = 2 * 3201e6 * 6144 / 8 / 1e9


def tflops(dtype: torch.dtype) -> float:
    """Of the H200's units that the estimator means: tensor cores for halves, plain ones else (TF32 is off)."""
    gpu = find_gpu("h200")
    rate = gpu.peak_flops(str(dtype).removeprefix("torch."), matmul=True)
    assert rate is not None
    return rate / 1e12


def estimated_us(node: OpNode, unit: float) -> float:
    """One call's microseconds, as ``RuntimeEstimator._roofline_estimate`` has them; ``unit`` multiplies its FLOP/s."""
    namespace, _, name = node.facts.packet.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    if packet in theirs._IGNORE_OPS:
        return 0.0
    args, kwargs = _shaped(node.args), {key: _shaped(value) for key, value in node.kwargs.items()}
    out = _shaped(node.out)
    flat_out = pytree.tree_leaves(out)
    moving = theirs.get_transfer_time(pytree.tree_leaves((args, kwargs)), flat_out)
    dtypes = {t.dtype for t in flat_out if isinstance(t, torch.Tensor) and t.dtype in theirs._FLOAT_TYPES}
    try:
        computing = theirs.get_compute_time(packet, args, kwargs, out, dtypes) / unit
    except (AssertionError, TypeError):  # no formula for these arguments
        computing = 0.0
    return float(max(moving, computing)) / 1e3


def _shaped(value: Value) -> Any:
    if isinstance(value, TensorMeta):
        dtype = getattr(torch, value.dtype)
        return torch.empty_strided(value.shape, value.stride, dtype=dtype, device="meta")
    if isinstance(value, tuple):
        return [_shaped(item) for item in value]
    return value


def estimate(runs: list[MeasuredRun], unit: float) -> list[list[Pair]]:
    """Device time and wall clock by program, both beside the one sum that the estimator gives."""
    device: list[Pair] = []
    wall: list[Pair] = []
    with (
        patch.object(theirs, "get_device_tflops", tflops),
        patch.object(theirs, "get_gpu_dram_gbps", lambda: DRAM_GB_S),
    ):
        for run in runs:
            us = sum(estimated_us(node, unit) for node in run.graph)
            device.append(Pair(run.name, us, run.device_us or 0.0))
            wall.append(Pair(run.name, us, run.wall_us or 0.0))
    return [device, wall]


def main(record: str) -> None:
    """Print both distributions, as torch has it and in the right unit."""
    runs = list(read_runs(Path(record)))
    for title, unit in (("as it is", 1.0), ("FLOP/s in the right unit", 1e-3)):
        for name, pairs in zip(("device time", "wall clock"), estimate(runs, unit), strict=True):
            print(f"{title}: {name}: {Distribution.of(pairs)}")


if __name__ == "__main__":
    main(sys.argv[1])
