"""Traces that other tools recorded, as a graph that can be priced, and with the times that they measured.

| module | holds |
|---|---|
| `seen` | what a trace says of a call, whatever tool wrote it |
| `kineto` | the trace of ``torch.profiler`` (``export_chrome_trace``): calls, launches, times; no tensor has a name in it |
| `execution` | PyTorch execution traces (``ExecutionTraceObserver``): calls with the identity of each tensor; no times |
| `overloads` | which overload a call was, by its arguments |
| `identities` | which tensor an argument is, known or guessed |
| `building` | calls to a graph |

A profiler writes an op and the ops that it is made of; the calls taken are the outermost that are no composites of
others, which is what optrace records when it runs a program.
"""

from optrace.tracing.imports.reading import Imported, read_trace
from optrace.tracing.imports.seen import TraceFileError

__all__ = ["Imported", "TraceFileError", "read_trace"]
