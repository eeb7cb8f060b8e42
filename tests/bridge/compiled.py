"""A traced module through Inductor, beside what eager did."""

from __future__ import annotations

import torch
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from tests.bridge.replay import Replay

#: What may differ, by the narrowest dtype that the graph computes in: a part of the largest value, and a floor under that for sums that cancel out (the gradient
#: of a bias before a batch norm is noise). Fused kernels round once where eager rounds after each op.
TOLERANCE = {
    torch.float32: (1e-4, 1e-6),
    torch.float64: (1e-6, 1e-9),
    torch.bfloat16: (3e-2, 1e-3),
    torch.float16: (5e-3, 1e-4),
}


def _narrowest(module: GraphModule) -> torch.dtype:
    values = pytree.tree_leaves([node.meta.get("val") for node in module.graph.nodes])
    dtypes = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return min((dtype for dtype in dtypes if dtype in TOLERANCE), key=lambda dtype: torch.finfo(dtype).bits)


def _of_tolerance(found: torch.Tensor, expected: torch.Tensor, computed_in: torch.dtype) -> float:
    if not expected.is_floating_point():
        return 0.0 if torch.equal(found, expected) else float("inf")
    part, floor = TOLERANCE[computed_in]
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).abs().max() / (part * expected.abs().max() + floor))


def compiled_by_inductor(replay: Replay) -> float:
    """The largest distance of a result or a written attribute from the module's own, as part of the tolerance."""
    module, same = replay.module_again(), replay.module_again()
    signature, computed_in = module.meta["optrace"], _narrowest(module)
    # The reads of values that the run took its branches by have no user: without them nothing depends on data.
    module.graph.eliminate_dead_code()
    module.recompile()
    given = [tensor.clone() for tensor in signature.example_inputs]
    with config.patch(fallback_random=True):
        compiled = compile_fx(module, given)
        with signature.seeded():
            found = compiled(*given)
        with signature.seeded():
            expected = same(*same.meta["optrace"].example_inputs)
    held = dict((*module.named_parameters(), *module.named_buffers()))
    wanted = dict((*same.named_parameters(), *same.named_buffers()))
    pairs = [
        *zip(found, expected, strict=True),
        *((held[n], wanted[n]) for n in signature.written if n in wanted),
    ]
    return max((_of_tolerance(a, b, computed_in) for a, b in pairs), default=0.0)
