"""What each op makes the GPU do: one rule an op where the schema's default is not right.

Rules see shapes, strides, dtypes and plain values, never tensors, and hold no hardware number. Adding an
op is one function with ``@rule("aten.name")``.
"""

from optrace.cost.rules import (
    attention,
    convolution,
    copies,
    elementwise,
    encoder,
    foreach,
    gather,
    losses,
    matmul,
    normalization,
    pooling,
    recurrent,
    reductions,
    sorting,
    unknown,
)
from optrace.cost.rules.table import RULES, rule, work_of

__all__ = [
    "RULES",
    "attention",
    "convolution",
    "copies",
    "elementwise",
    "encoder",
    "foreach",
    "gather",
    "losses",
    "matmul",
    "normalization",
    "pooling",
    "recurrent",
    "reductions",
    "rule",
    "sorting",
    "unknown",
    "work_of",
]
