"""The program's own timers: what they measure where nobody waits for the GPU, or nothing has run before."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from optrace.diagnosis.findings.finding import Hit
from optrace.diagnosis.findings.scene import Scene
from optrace.diagnosis.findings.table import kind
from optrace.graph import Mark


@kind("timer", "a timer around GPU work that does not measure it")
def timers_around_gpu_work(scene: Scene) -> Iterator[Hit]:
    """Two clocks read in one function with launches between: no wait before the second, or no run before the first."""
    marks = scene.graph.marks
    waits = sorted(
        {mark.call for mark in marks if mark.kind == "synchronize"} | {call + 1 for call in scene.waits}
    )
    steps_marked = any(mark.kind == "step" for mark in marks)
    warm: set[object] = set()
    seen = 0
    for start, end in _timed(marks):
        launching = [call for call in range(start.call, end.call) if scene.launches[call]]
        if not launching:
            continue
        for call in range(seen, start.call):
            warm.add(_work(scene, call))
        seen = max(seen, start.call)
        last = launching[-1]
        if not any(last < wait <= end.call for wait in waits):
            yield Hit(
                (launching[0],),
                f"the clock is read with {len(launching)} launches under way and nobody waiting for them: it times how fast the "
                "host issues work.",
                "call torch.cuda.synchronize() before each reading of the clock, or time with torch.cuda.Event or "
                "torch.utils.benchmark.",
                line=end.frame,
            )
        if not steps_marked and not any(_work(scene, call) in warm for call in launching):
            yield Hit(
                (launching[0],),
                "the first run of this work is timed: it loads kernels, chooses algorithms and allocates memory.",
                "run it a few times before the first reading of the clock.",
                line=start.frame,
            )


def _timed(marks: list[Mark]) -> Iterator[tuple[Mark, Mark]]:
    """Readings of the clock in one function, one after the other; back to an earlier line it is the next turn of a
    loop, and nothing is timed."""
    clocks = [mark for mark in marks if mark.kind == "clock" and mark.frame is not None]
    by_function: dict[tuple[str, str], list[Mark]] = {}
    for mark in clocks:
        assert mark.frame is not None
        by_function.setdefault((mark.frame.file, mark.frame.function), []).append(mark)
    pairs = [
        pair for own in by_function.values() for pair in pairwise(own) if _line(pair[0]) <= _line(pair[1])
    ]
    yield from sorted(pairs, key=lambda pair: pair[0].call)


def _line(mark: Mark) -> int:
    return 0 if mark.frame is None else mark.frame.line


def _work(scene: Scene, call: int) -> object:
    """What a call does, wherever in the program it stands: a warm-up is another line than the timed loop."""
    graph = scene.graph
    shapes = tuple(graph.tensor_layout(tensor) for tensor in graph.operands(call))
    return graph.facts(call).name, graph.module_of(call) >= 0 and scene.module(call), shapes
