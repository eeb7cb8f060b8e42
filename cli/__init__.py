"""The ``optrace`` command: arguments, progress, printing, exit codes. Nothing else in optrace prints or exits.

| module | holds |
|---|---|
| `dispatch` | the table of commands; `optrace model.py` is `optrace trace model.py` |
| `trace`, `check`, `diff`, `sweep`, `scoreboard`, `accuracy`, `gpus`, `explain`, `completion` | one command each |
| `target`, `imported` | a program to run, a recorded graph or another tool's trace, as its report |
| `recorded` | several recorded graphs with their titles |
| `options` | choices, and help by groups of options |
| `recording` | a program run under the recorder |
| `speaker` | what is said and what `--quiet` keeps back |
| `console`, `summary`, `progress` | where is printed, what of a report, what while a trace runs |
| `errors` | exit codes, one line for bad input, tracebacks without our frames |

Results go to stdout, progress and warnings to stderr. torch is imported when a program is run, not before:
``--help`` has to be quick.
"""

from .dispatch import main, run

__all__ = ["main", "run"]
