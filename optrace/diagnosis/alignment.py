"""Two sequences laid beside each other: a longest common subsequence over few candidates an item.

The candidates of an item are the equal items of the other sequence that are about as many repeats from its start or
from its end (Hunt and Szymanski's algorithm looks at all equal items, which is quadratic for a loop of thousands of
equal calls). O(n log n).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence

#: How many repeats of an item may have come or gone before it for it still to be found in place.
_WINDOW = 6


def align(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Positions of equal items, ``(in before, in after)``, both rising.

    >>> align("abcab", "abxcab")
    [(0, 0), (1, 1), (2, 3), (3, 4), (4, 5)]
    """
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    middle = _common(before[head : len(before) - tail], after[head : len(after) - tail])
    return [
        *((place, place) for place in range(head)),
        *((one + head, other + head) for one, other in middle),
        *((len(before) - tail + place, len(after) - tail + place) for place in range(tail)),
    ]


def _common(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[tuple[int, int]]:
    """The longest rising chain of candidates (patience sorting)."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, item in enumerate(after):
        places[item].append(place)
    repeats: dict[Hashable, int] = defaultdict(int)
    for item in before:
        repeats[item] += 1
    seen: dict[Hashable, int] = defaultdict(int)
    ends: list[int] = []  # the smallest place in `after` that a chain of each length ends at
    links: list[tuple[int, int, int]] = []  # (place before, place after, the link before it)
    last_links: list[int] = []
    for place, item in enumerate(before):
        mine = seen[item]
        seen[item] += 1
        for candidate in reversed(_candidates(places.get(item, []), mine, repeats[item])):
            length = bisect_left(ends, candidate)
            links.append((place, candidate, last_links[length - 1] if length else -1))
            if length == len(ends):
                ends.append(candidate)
                last_links.append(len(links) - 1)
            else:
                ends[length] = candidate
                last_links[length] = len(links) - 1
    chain = []
    link = last_links[-1] if last_links else -1
    while link >= 0:
        one, other, link = links[link]
        chain.append((one, other))
    return chain[::-1]


def _candidates(places: list[int], mine: int, of: int) -> list[int]:
    """Of an item's places in the other sequence those that may be its own, rising."""
    from_end = len(places) - (of - mine)
    chosen = {
        number
        for middle in (mine, from_end)
        for number in range(max(0, middle - _WINDOW), min(len(places), middle + _WINDOW + 1))
    }
    return [places[number] for number in sorted(chosen)]
