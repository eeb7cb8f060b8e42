"""Parts of a picture that no edge connects, put in rows.

Layout programs put them all side by side: an optimizer's update of a hundred parameters, or a model being
initialized, becomes a ribbon of nodes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import networkx as nx

from optrace.rendering.columns import Columns
from optrace.rendering.picture import Picture

#: So many stand side by side before they are put in rows.
_ROW = 8

#: A node is about 1.5 inches wide and a rank 0.85 high: ``sqrt(0.5 * nodes)`` parts a row make rows about as
#: wide as all of them together are high.
_SQUARE = 0.5


def rows(picture: Picture, columns: Columns) -> list[tuple[str, str]]:
    """Pairs of nodes of which the second stands below the first."""
    joined = nx.Graph()
    joined.add_nodes_from(picture.graph)
    joined.add_edges_from(
        (src.id, dst.id) for src, dst, _ in picture.edges if columns.column[src.id] == columns.column[dst.id]
    )
    place = {node: number for number, node in enumerate(picture.graph)}
    parts: Mapping[tuple[str, int], list[list[str]]] = defaultdict(list)
    for part in nx.connected_components(joined):
        ordered = sorted(part, key=place.__getitem__)
        parts[columns.column[ordered[0]]].append(ordered)
    below: list[tuple[str, str]] = []
    for found in parts.values():
        if len(found) > _ROW:
            found.sort(key=lambda part: place[part[0]])
            width = max(_ROW, math.ceil(math.sqrt(_SQUARE * sum(map(len, found)))))
            below += [(above[-1], under[0]) for above, under in zip(found, found[width:], strict=False)]
    return below
