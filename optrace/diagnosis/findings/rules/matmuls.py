"""Matrix products that the tensor cores could do faster: float32 without TF32, rows off the alignment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from optrace import units
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import OpNode, TensorMeta, Value

#: FLOPs of a product from which its arithmetic matters: 15 us on an H200's plain float32 units, and a tenth of that in
#: half precision.
_LEAST_FLOPS = 1e9
#: Rows that start at multiples of this many bytes can be loaded in wide pieces.
_ALIGNMENT_BYTES = 16
_HALVES = ("float16", "bfloat16")


@kind("tf32-off", "float32 matrix products without TF32")
def float32_without_tf32(scene: Scene) -> Iterator[Hit]:
    """torch's default precision for float32 products, on a GPU whose tensor cores could do them."""
    if "tf32" not in scene.gpu.peak_tflops or scene.graph.info.float32_matmul != "highest":
        return
    calls = [
        call
        for call, work in enumerate(map(scene.work, range(len(scene))))
        if work.kind == "matmul" and work.math_dtype == "float32" and (work.matmul_flops or 0) >= _LEAST_FLOPS
    ]
    if not calls:
        return
    flops = sum(scene.work(call).matmul_flops or 0 for call in calls)
    instead = {}
    for call in calls:
        work = replace(scene.work(call), math_dtype="tf32")
        instead[call] = scene.retimed(call, scene.device_us(work, scene.hbm_bytes[call]))
    yield Hit(
        tuple(calls),
        f"{units.flop(flops)} of float32 products run outside of the tensor cores: TF32 is off, as it is by default.",
        'torch.set_float32_matmul_precision("high"), where ten bits of mantissa will do; or bfloat16.',
        instead,
    )


@kind("misaligned-matmul", "a matrix product whose dimensions are off the alignment")
def off_the_alignment(scene: Scene) -> Iterator[Hit]:
    """Half-precision products with rows that do not start at multiples of 16 bytes."""
    for call in scene.calls_of("mm", "addmm", "bmm", "baddbmm"):
        work = scene.work(call)
        if work.math_dtype not in _HALVES or (work.matmul_flops or 0) < _LEAST_FLOPS:
            continue
        node = scene.node(call)
        operands = [t for t in (*node.inputs, *node.outputs) if len(t.shape) >= 2]
        odd = [tensor for tensor in operands if not _is_aligned(tensor)]
        if not odd:
            continue
        shapes = ", ".join(dict.fromkeys(str(list(tensor.shape)) for tensor in odd))
        yield Hit(
            (call,),
            f"rows of {shapes} start at no multiple of {_ALIGNMENT_BYTES} bytes, which keeps cuBLAS from its fast kernels.",
            "pad the dimension to a multiple of 8 (a vocabulary to one of 64) and mask or cut what is added.",
            {call: scene.retimed(call, *scene.price(_padded(node), scene.crossing(call)))},
        )


def _is_aligned(tensor: TensorMeta) -> bool:
    """The rows, whichever way the matrix lies."""
    strides = [
        stride for size, stride in zip(tensor.shape, tensor.stride, strict=True) if size > 1 and stride > 1
    ]
    return all(stride * tensor.itemsize % _ALIGNMENT_BYTES == 0 for stride in strides)


def _padded(node: OpNode) -> OpNode:
    """The product with every dimension rounded up to rows that are aligned."""
    tensors = {id(tensor): _rounded_up(tensor) for tensor in (*node.inputs, *node.outputs)}

    def padded(value: Value) -> Value:
        return tensors[id(value)] if isinstance(value, TensorMeta) else value

    return replace(
        node,
        args=tuple(map(padded, node.args)),
        kwargs={name: padded(value) for name, value in node.kwargs.items()},
        out=padded(node.out),
        inputs=tuple(tensors[id(tensor)] for tensor in node.inputs),
        outputs=tuple(tensors[id(tensor)] for tensor in node.outputs),
    )


def _rounded_up(tensor: TensorMeta) -> TensorMeta:
    """The same order of dimensions, the last two a multiple of eight."""
    rank = len(tensor.shape)
    shape = tuple(-(-size // 8) * 8 if dim >= rank - 2 else size for dim, size in enumerate(tensor.shape))
    stride = [0] * rank
    step = 1
    for dim in sorted(range(rank), key=lambda dim: (tensor.stride[dim], -dim)):
        stride[dim] = step
        step *= shape[dim]
    return replace(tensor, shape=shape, stride=tuple(stride))
