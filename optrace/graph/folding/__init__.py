"""Repeated structure of a run, found on the graph itself: layers, time steps, experts, parameters, backward too.

    calls -> tree of phases, modules and calls -> equal subtrees numbered alike -> runs of equal neighbours -> items

| module | holds |
|---|---|
| `tree` | the run as a tree: phases, calls of modules, calls |
| `signatures` | a number for each subtree, equal for equal subgraphs (hash-consing) |
| `repeats` | a row of numbers cut into runs: the same body over and over |
| `items` | the folded tree, each repeat one item with a count, opened level by level |
| `differences` | what sets a copy apart from its equals |
| `naming` | what to call a stretch that is no module |
| `record` | the repeats as plain data |

Pictures, the page and ``graph.json`` all fold by it. All of it takes O(n log n) in the number of calls.
"""

from optrace.graph.folding.items import Item, fold
from optrace.graph.folding.record import folding_record
from optrace.graph.folding.tree import Kind

__all__ = ["Item", "Kind", "fold", "folding_record"]
