"""The nouns: what one ATen call was, and the columns that a whole run is kept in.

Nothing here imports torch, so that a recorded graph can be read, priced and drawn anywhere.
"""

from optrace.graph.columns import Columns
from optrace.graph.nouns import (
    DTYPE_BYTES,
    Frame,
    Mark,
    MarkKind,
    ModuleCall,
    OpFacts,
    OpNode,
    Phase,
    Source,
    Storage,
    TensorMeta,
    TraceInfo,
    Value,
    tensors_in,
)
from optrace.graph.opgraph import Edge, OpGraph
from optrace.graph.record import GraphFormatError, graph_from_record, graph_to_record

__all__ = [
    "DTYPE_BYTES",
    "Columns",
    "Edge",
    "Frame",
    "GraphFormatError",
    "Mark",
    "MarkKind",
    "ModuleCall",
    "OpFacts",
    "OpGraph",
    "OpNode",
    "Phase",
    "Source",
    "Storage",
    "TensorMeta",
    "TraceInfo",
    "Value",
    "graph_from_record",
    "graph_to_record",
    "tensors_in",
]
