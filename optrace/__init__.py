"""optrace: prices an eager PyTorch program op by op, with no GPU, before anyone compiles it.

    import optrace

    with optrace.trace(gpu="h100") as t:
        model = t.place(Model())
        model(x).sum().backward()
    print(t.report().verdict.sentence)
    optrace.render(t.report(), "graph.svg")

Names are loaded when first used: importing ``optrace`` costs nothing, not even torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optrace.api import Trace, load, render, trace
    from optrace.captured import backend, from_fx
    from optrace.graph import OpGraph, OpNode, TensorMeta
    from optrace.report import Report
    from optrace.tracing import step

__version__ = "0.1.0"

__all__ = [
    "OpGraph",
    "OpNode",
    "Report",
    "TensorMeta",
    "Trace",
    "__version__",
    "backend",
    "from_fx",
    "load",
    "render",
    "step",
    "trace",
]

_HOMES = {
    "trace": "optrace.api",
    "Trace": "optrace.api",
    "load": "optrace.api",
    "render": "optrace.api",
    "from_fx": "optrace.captured",
    "backend": "optrace.captured",
    "step": "optrace.tracing",
    "Report": "optrace.report",
    "OpGraph": "optrace.graph",
    "OpNode": "optrace.graph",
    "TensorMeta": "optrace.graph",
    "load_ipython_extension": "optrace.magic",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'optrace' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
