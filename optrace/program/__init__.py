"""``model.py`` to something to run.

`entries` says which entry of a file is meant, `files` what a file's syntax tree tells and how it is imported, `step`
builds the step around a model, `options` holds what a user may choose.
"""

from optrace.program.entries import RANKS, Program, find_program
from optrace.program.options import DTYPES, OPTIMIZERS, Options, ProgramError
from optrace.program.step import Recorder

__all__ = [
    "DTYPES",
    "OPTIMIZERS",
    "RANKS",
    "Options",
    "Program",
    "ProgramError",
    "Recorder",
    "find_program",
]
