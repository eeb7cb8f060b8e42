"""Pointwise ops: chains that pass large tensors through HBM again and again, and the kernel that is not vectorized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optrace import units
from optrace.cost.rules.tensor_iterator import byte_strides, merged, order_of_dims
from optrace.cost.work import MATRIX_KINDS
from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import TensorMeta

#: Kernels in a row from which they are a chain.
_LEAST_CHAIN = 3
#: Tensors are large from this part of the L2 on: a few of them no longer fit.
_LARGE_SHARE_OF_L2 = 1 / 8

_COPIES = ("_to_copy", "copy", "clone", "lift_fresh_copy")


def is_large(scene: Scene, nbytes: int) -> bool:
    return nbytes >= _LARGE_SHARE_OF_L2 * scene.gpu.l2_bytes


@kind("pointwise-chain", "pointwise ops in a row on large tensors")
def chains_of_pointwise_ops(scene: Scene) -> Iterator[Hit]:
    """Connected pointwise calls on tensors of one size that one kernel could do in one pass."""
    for chain in _chains(scene):
        moved = sum(scene.hbm_bytes[call] for call in chain)
        fused = _fused_bytes(scene, chain)
        if fused >= moved:
            continue
        names = ", ".join(dict.fromkeys(scene.names[call] for call in chain))
        last = chain[-1]
        yield Hit(
            tuple(chain),
            f"{len(chain)} pointwise kernels in a row ({names}) move {units.moved(moved)} through HBM; one kernel would move "
            f"{units.moved(fused)}.",
            "use the op that does all of it (F.gelu, F.silu, F.rms_norm, torch.addcmul), or torch.compile this part.",
            {**scene.left_out(chain), last: scene.one_call(last, scene.streaming_us(fused))},
        )


def _chains(scene: Scene) -> list[list[int]]:
    """Regions whose outside inputs all stand before their first call, so that one kernel can take their place."""
    region_of: dict[int, list[int]] = {}
    regions: list[list[int]] = []
    for call in range(len(scene)):
        if (
            not scene.is_pointwise(call)
            or scene.graph.phase(call) == "optimizer"
            or scene.names[call] in _COPIES
        ):
            continue
        size = _size(scene, call)
        if not is_large(scene, size[1]):
            continue
        sources = scene.sources[call]
        joined = None
        for source in sources:
            region = region_of.get(source)
            if region is not None and _size(scene, region[0])[0] == size[0]:
                first = region[0]
                if all(other < first or region_of.get(other) is region for other in sources):
                    joined = region
                    break
        if joined is None:
            joined = []
            regions.append(joined)
        joined.append(call)
        region_of[call] = joined
    return [region for region in regions if len(region) >= _LEAST_CHAIN]


def _size(scene: Scene, call: int) -> tuple[int, int]:
    """Elements and bytes of what a call gives."""
    node = scene.node(call)
    written = node.outputs or tuple(t for t, writes in zip(node.inputs, node.writes, strict=True) if writes)
    return (written[0].numel, written[0].nbytes) if written else (0, 0)


def _fused_bytes(scene: Scene, chain: Sequence[int]) -> int:
    """Outside inputs read once, results used outside written once."""
    members = set(chain)
    outside: dict[tuple[int, int], int] = {}
    written = 0
    for call in chain:
        node = scene.node(call)
        for tensor, source in zip(node.inputs, scene.sources[call], strict=True):
            if source not in members and tensor.device not in ("cpu", "meta"):
                outside[tensor.storage, tensor.offset] = tensor.nbytes
        users = scene.users[call]
        if not users or any(user not in members for user in users):
            written += _size(scene, call)[1]
    return sum(outside.values()) + written


@kind("slow-elementwise", "a pointwise op in the kernel that is not vectorized")
def not_vectorized(scene: Scene) -> Iterator[Hit]:
    """Operands of other shapes, strides or dtypes than the result: elements are then addressed one by one
    (gpu_kernel_impl in CUDALoops.cuh)."""
    for call in range(len(scene)):
        if not scene.is_pointwise(call) or scene.names[call] in _COPIES:
            continue
        if not is_large(scene, _size(scene, call)[1]):
            continue
        node = scene.node(call)
        tensors = [t for t in node.inputs if t.device not in ("cpu", "meta")]
        result = node.outputs[0] if node.outputs else node.inputs[0]
        if len(tensors) < 2:
            continue
        mixed = len({tensor.dtype for tensor in tensors if tensor.dtype != "bool"}) > 1
        if not mixed and _runs_on(result, tensors):
            continue
        own_us = scene.busy_us[call]
        if _is_bias_of_product(scene, call, tensors):
            yield Hit(
                (call,),
                f"a bias is added to the product by a kernel of its own, which reads and writes all {units.moved(result.nbytes)} of "
                "it and is not vectorized.",
                "give the bias to the product (nn.Linear(bias=True), F.linear, torch.addmm): cuBLAS adds it on the way out.",
                scene.left_out((call,)),
            )
            continue
        narrow = (
            min(tensor.itemsize for tensor in tensors) / max(tensor.itemsize for tensor in tensors)
            if mixed
            else 1
        )
        vectorized = scene.streaming_us(_streamed_bytes(tensors, result, narrow))
        reason = (
            f"its operands have different dtypes ({', '.join(dict.fromkeys(t.dtype for t in tensors))})"
            if mixed
            else "an operand is broadcast or lies otherwise in memory than the result"
        )
        yield Hit(
            (call,),
            f"{reason}, so {scene.names[call]} addresses its elements one by one.",
            "cast the operand once beforehand, outside of the step."
            if mixed
            else "fold it into the op before (bias, scale, norm weight), or torch.compile this part.",
            {call: scene.retimed(call, vectorized)} if vectorized < own_us else None,
        )


def _streamed_bytes(tensors: Sequence[TensorMeta], result: TensorMeta, narrow: float) -> float:
    """What the vectorized kernel would move, with everything wide in the narrow dtype."""
    widest = max(tensor.itemsize for tensor in tensors)
    return sum(
        tensor.nbytes * (narrow if tensor.itemsize == widest else 1.0) for tensor in (*tensors, result)
    )


def _runs_on(result: TensorMeta, tensors: Sequence[TensorMeta]) -> bool:
    """All operands are one run of memory in the result's order."""
    operands = [result, *tensors]
    strides = [byte_strides(tensor, result.shape) for tensor in operands]
    whole = merged(result.shape, strides, order_of_dims(result.shape, strides))
    return len(whole.shape) <= 1 or all(size == 1 for size in whole.shape[1:]) if whole.strides else True


def _is_bias_of_product(scene: Scene, call: int, tensors: Sequence[TensorMeta]) -> bool:
    """A row is added to what a matrix product has just given."""
    if scene.names[call] != "add" or len(tensors) != 2:
        return False
    row = min(tensors, key=lambda tensor: tensor.numel)
    wide = max(tensors, key=lambda tensor: tensor.numel)
    if row.numel != wide.shape[-1] or row.shape[-1] != row.numel:
        return False
    makers = [source for source in scene.sources[call] if source >= 0]
    return any(
        scene.work(maker).kind in MATRIX_KINDS
        and scene.names[maker] in ("mm", "bmm")
        and len(scene.users[maker]) == 1
        for maker in makers
    )
