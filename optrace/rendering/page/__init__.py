"""The report page: one self-contained HTML file in which the program's costs can be explored and its knobs turned.

| module | holds |
|---|---|
| `document` | a report as the page's data: a JSON header and columns of numbers |
| `structure` | what was recorded: calls, places, texts, dependences, storages |
| `tree` | the folded run, which the page opens level by level |
| `prices` | what pricing says of each call, split so that the page can slide rates |
| `alternatives` | the same program priced for other GPUs and L2 sizes |
| `columns` | numbers packed for the browser |
| `html` | data, script and style put into one file |
| `notebook` | the page in a frame, the graph as a picture |

The script is built from ``web/`` and committed in ``assets/``: users need no Node.
"""

from optrace.rendering.page.html import render

__all__ = ["render"]
