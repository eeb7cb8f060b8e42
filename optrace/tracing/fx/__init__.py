"""The bridge to ``torch.fx``, both ways: a recorded graph as a ``GraphModule``, a captured graph run to be recorded.

`plan` finds where each operand comes from, by numbers alone; `arguments` turns recorded values into torch's;
`metas` says of a node what torch's own tracers say; `build` puts it together; `signature` says what goes in and
comes out, and on which values the run depended. `running` goes the other way.
"""

from optrace.tracing.fx.build import graph_module
from optrace.tracing.fx.errors import FxError
from optrace.tracing.fx.running import run_captured
from optrace.tracing.fx.signature import Guard, Signature

__all__ = ["FxError", "Guard", "Signature", "graph_module", "run_captured"]
