"""The launch configuration of TensorIterator's reductions (ReduceConfig and setReduceConfig in Reduce.cuh).

All of sum, mean, max, norm, var, argmax, any ... run one kernel template. Threads of a block lie along the
fastest dimension of the input; what they leave over is split over the block's other direction, and, where each
thread would still add up 256 values or more, over several blocks an output. Those meet through semaphores that a
memset clears first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optrace.cost.profiles import Target
from optrace.cost.rules.tensor_iterator import Iteration, Strides, byte_strides, merged, order_of_dims
from optrace.graph import TensorMeta

WARP = 32
#: ``mnt_wrapper::MAX_NUM_THREADS``; half of it for complex128.
MAX_THREADS = 512
MIN_VALUES_PER_THREAD = 16
MAX_VALUES_PER_THREAD = 256
#: Reductions of fewer elements than this are not loaded as vectors.
MIN_VECTORIZED = 128
MAX_OUTPUT_VECTOR = 4


@dataclass(frozen=True, slots=True)
class ReduceConfig:
    """One launch: blocks along the outputs, blocks that share an output, and threads in a block. ``staged``:
    values that blocks which share an output lay down for each other (``global_memory_size``; most of it is
    allocated and not touched)."""

    blocks: int
    ctas_per_output: int
    block_width: int
    block_height: int
    staged: int = 0

    @property
    def clears_semaphores(self) -> bool:
        return self.ctas_per_output > 1


@dataclass(frozen=True, slots=True)
class Reduction:
    """Launches of a reduction: one kernel a piece that 32-bit offsets reach, each perhaps with a memset;
    ``staged`` is the most values that one of them stages."""

    kernels: int = 0
    memsets: int = 0
    staged: int = 0


def reduction(
    source: TensorMeta,
    dims: Sequence[int],
    target: Target,
    *,
    input_vector: int = 4,
    output_itemsize: int | None = None,
) -> Reduction:
    """Launches of reducing ``source`` over ``dims`` (none named: over all).

    ``input_vector`` is the kernel's ``input_vec_size``: elements that a thread loads at once.
    """
    if not source.numel:
        return Reduction()
    configs = [
        reduce_config(piece, source, target, input_vector)
        for piece in reduction_iteration(source, dims, output_itemsize or source.itemsize).pieces()
    ]
    return Reduction(
        len(configs),
        sum(config.clears_semaphores for config in configs),
        max(config.staged for config in configs),
    )


def reduction_iteration(source: TensorMeta, dims: Sequence[int], output_itemsize: int) -> Iteration:
    """The reduction's dimensions, reduced ones first. Its output is row-major over the kept ones."""
    rank = len(source.shape)
    reduced = {dim % rank for dim in dims} if dims and rank else set(range(rank))
    output = [0] * rank
    step = output_itemsize
    for dim in reversed(range(rank)):
        if dim not in reduced:
            output[dim] = step
            step *= source.shape[dim]
    strides: tuple[Strides, Strides] = (tuple(output), byte_strides(source, source.shape))
    order = order_of_dims(source.shape, strides, reduction=True)
    return merged(source.shape, strides, order)


def reduce_config(piece: Iteration, source: TensorMeta, target: Target, input_vector: int) -> ReduceConfig:
    """How one piece is launched."""
    itemsize = source.itemsize
    output, steps = piece.strides
    rank = len(piece.shape)
    reduced = sum(step == 0 for step in output)
    outputs = math.prod(size for size, step in zip(piece.shape, output, strict=True) if step)
    inputs = piece.numel // outputs
    along_input = rank == 0 or reduced == rank or steps[0] < steps[reduced]
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    fastest = itemsize if rank == 0 else steps[0] if along_input else steps[reduced]
    output_vector = 1
    if fastest == itemsize:
        if along_input and width >= MIN_VECTORIZED and reduced == 1:
            width //= input_vector
        elif not along_input:
            output_vector = _output_vector(piece, source, reduced)
            width //= output_vector

    threads = (MAX_THREADS // 2 if itemsize == 16 else MAX_THREADS) // output_vector
    width_limit, height_limit = (min(_last_power_of_2(n), threads) for n in (width, height))
    block_height = min(height_limit, threads // min(width_limit, WARP))
    block_width = min(width_limit, threads // block_height)

    values, outputs_a_block = inputs, 1
    if along_input:
        values = _ceil(inputs, block_width)
    else:
        outputs_a_block = block_width
    across_warps = values >= min(block_height * 16, MAX_VALUES_PER_THREAD)
    if across_warps:
        values = _ceil(inputs, (block_width if along_input else 1) * block_height)
    else:
        outputs_a_block *= block_height

    blocks = _ceil(outputs // output_vector, outputs_a_block)
    resident = target.sm_count * (threads_per_sm(target.capability) // (block_width * block_height))
    ctas = 1
    if across_warps and values >= MAX_VALUES_PER_THREAD and blocks <= resident:
        ctas = max(
            min(_ceil(resident, blocks), _ceil(values, MIN_VALUES_PER_THREAD)),
            _ceil(values, MAX_VALUES_PER_THREAD),
        )
    staged = 0 if ctas == 1 else outputs * ctas * (1 if along_input else block_width * output_vector)
    return ReduceConfig(blocks, ctas, block_width, block_height, staged)


def threads_per_sm(capability: tuple[int, int]) -> int:
    """Threads that a multiprocessor holds (CUDA Programming Guide, technical specifications per capability)."""
    if capability == (7, 5):
        return 1024
    return 1536 if capability in ((8, 6), (8, 7), (8, 9)) or capability[0] >= 12 else 2048


def _output_vector(piece: Iteration, source: TensorMeta, output_dim: int) -> int:
    """Outputs that a thread computes side by side: as many as address, size and the other strides allow."""
    itemsize = source.itemsize
    start = source.offset + piece.offset // itemsize
    others = [step // itemsize for dim, step in enumerate(piece.strides[-1]) if dim != output_dim]
    vector = MAX_OUTPUT_VECTOR
    while any(number % vector for number in (start, piece.shape[output_dim], *others)):
        vector //= 2
    return vector


def _last_power_of_2(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _ceil(number: int, by: int) -> int:
    return -(-number // by)
