"""The rules, a module a subject."""

from optrace.diagnosis.findings.rules import (
    attention,
    casts,
    layouts,
    loops,
    matmuls,
    memory,
    modes,
    pointwise,
    repeats,
    syncs,
    timers,
    utilization,
)

__all__ = [
    "attention",
    "casts",
    "layouts",
    "loops",
    "matmuls",
    "memory",
    "modes",
    "pointwise",
    "repeats",
    "syncs",
    "timers",
    "utilization",
]
