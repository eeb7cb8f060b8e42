"""Device memory that libraries keep for themselves between calls, from torch's caching allocator."""

from __future__ import annotations

import numpy as np

from optrace.cost.profiles import Target
from optrace.graph import Columns, OpGraph
from optrace.graph.nouns import PHASES

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


def library_workspaces(graph: OpGraph, columns: Columns, target: Target) -> tuple[int, ...]:
    """Bytes of each block that cuBLAS and cuBLASLt hold from their first product on, to the end of the process.

    There is one a handle and stream, and each host thread has a handle of its own: a backward pass, which
    runs in a thread of autograd's, has its own beside the forward's.
    """
    packets = [facts.packet for facts in graph.ops]
    is_product = np.array([packet in _PRODUCTS for packet in packets], dtype=np.bool_)
    on_device = np.array(
        [layout.device not in ("cpu", "meta") for layout in graph.layouts.rows], dtype=np.bool_
    )
    made = on_device[columns.tensor_layout[columns.outputs]]
    outputs = np.concatenate(([0], np.cumsum(made)))[columns.output_start]
    calls = np.flatnonzero(is_product[columns.op] & (np.diff(outputs) > 0))
    users: dict[tuple[bool, int], bool] = {}
    backward = columns.phase[calls] == PHASES.index("backward")
    uses = np.stack((backward, columns.stream[calls], columns.op[calls]), axis=1)
    for in_backward, stream, op in dict.fromkeys(map(tuple, uses.tolist())):
        thread = bool(in_backward), stream
        users[thread] = users.get(thread, False) or packets[op] in _LT_PRODUCTS
    own = HOPPER_BYTES if target.capability == (9, 0) else OTHER_BYTES
    return tuple(nbytes for uses_lt in users.values() for nbytes in ((own, LT_BYTES) if uses_lt else (own,)))
