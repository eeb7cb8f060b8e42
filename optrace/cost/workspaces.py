"""Device memory that libraries keep for themselves between calls, from torch's caching allocator."""

from __future__ import annotations

from optrace.cost.profiles import Target
from optrace.graph import OpGraph

#: What cuBLAS is given a handle: ``:4096:8`` (KiB, pieces) on compute capability 9.0, else ``:4096:2:16:8``
#: (CublasHandlePool.cpp).
HOPPER_BYTES = 8 * 4096 * 1024
OTHER_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024
#: What cuBLASLt is given beside it (CublasHandlePool.cpp).
LT_BYTES = 1024 * 1024

#: Ops that go to cuBLAS, and those of them that add a bias in the product, by cuBLASLt.
_PRODUCTS = frozenset(
    f"aten.{name}"
    for name in (
        "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation", "_int_mm",
        "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
    )
)  # fmt: skip
_LT_PRODUCTS = frozenset({"aten.addmm", "aten._addmm_activation", "aten._int_mm"})


def library_workspaces(graph: OpGraph, target: Target) -> tuple[int, ...]:
    """Bytes of each block that cuBLAS and cuBLASLt hold from their first product on, to the end of the process.

    There is one a handle and stream, and each host thread has a handle of its own: a backward pass, which
    runs in a thread of autograd's, has its own beside the forward's.
    """
    users: dict[tuple[bool, int], bool] = {}
    for call in range(len(graph)):
        packet = graph.facts(call).packet
        if packet in _PRODUCTS and _on_device(graph, call):
            thread = graph.phase(call) == "backward", graph.stream(call)
            users[thread] = users.get(thread, False) or packet in _LT_PRODUCTS
    own = HOPPER_BYTES if target.capability == (9, 0) else OTHER_BYTES
    return tuple(nbytes for uses_lt in users.values() for nbytes in ((own, LT_BYTES) if uses_lt else (own,)))


def _on_device(graph: OpGraph, call: int) -> bool:
    return any(
        graph.layouts[graph.tensor_layout(tensor)].device not in ("cpu", "meta")
        for tensor in graph.outputs(call)
    )
