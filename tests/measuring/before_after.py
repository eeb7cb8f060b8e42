"""What findings claim beside what the change bought: each pair of programs timed in turns on this machine's GPU.

    python -m tests.measuring.before_after FILE.jsonl [HOST]

A line a pair: ``kind``, ``pair``, ``claimed_us`` (with the profile HOST, the Python between the first twin's calls as it was
timed; null where no time is claimed), ``saved_us`` (median wall clock before less after), its tenth and ninetieth
percentile over the turns, the medians of both, the first twin's wall clock as it is replayed, a turn of the reference loop and how
many turns count.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from optrace.cost.profiles import Pricing, find_gpu, pricing
from optrace.measuring.steady import TOLERANCE, loop_turn_us, timed, undisturbed
from optrace.report import report
from optrace.tracing import Session, open_session
from optrace.tracing.gaps import Gaps, keep_times, typical
from tests.diagnosis.findings import programs
from tests.diagnosis.findings.programs import PAIRS, Make

#: Of ``PAIRS``, those whose twin does the same work with the change made.
BEFORE_AFTER: tuple[Make, ...] = (
    programs.item_in_a_loop,
    programs.pinned_and_waited_for,
    programs.adamw,
    programs.gelu_written_out,
    programs.bias_beside_the_product,
    programs.mixed_dtypes,
    programs.row_major_convolutions,
    programs.back_and_forth,
    programs.there_and_back,
    programs.float32_products,
    programs.odd_vocabulary,
    programs.attention,
    programs.rotary_table,
    programs.softmax_twice,
    programs.dropout_left_on,
    programs.batch_norm_left_on,
    programs.frozen_backbone,
)

#: Steps of each twin before any is timed; undisturbed turns that are wanted, and the seconds that a pair may take to get
#: them; runs in which the Python between calls is timed.
_WARM, _TURNS, _SECONDS, _TIMED = 10, 40, 8.0, 15


@dataclass(frozen=True, slots=True)
class Turn:
    """Both twins one after the other: wall clocks, until when the host was done with the first, and a turn of the
    reference loop, the slower of those around them. Microseconds."""

    before_us: float
    after_us: float
    issue_us: float
    loop_us: float


def main(out: Path, host: str | None = None) -> None:
    """Measure each pair, into a file beside ``out`` that takes its name in the end."""
    prices = pricing(find_gpu(torch.cuda.get_device_name()).key, host)
    kinds = {make: kind for kind, makes in PAIRS.items() for make in makes}
    part = out.with_name(out.name + ".part")
    with open_session("cuda") as session, part.open("w") as file:
        for make in BEFORE_AFTER:
            row = measured(session, prices, kinds[make], make)
            print(json.dumps(row), file=file, flush=True)
            claimed = "no claim" if row["claimed_us"] is None else f"~{row['claimed_us']:,.0f}"
            figures = f"{claimed} / {row['saved_us']:,.0f} us"
            print(f"{row['kind']:22} {row['pair']:28} {figures}", flush=True)
    part.replace(out)


def measured(session: Session, prices: Pricing, kind: str, make: Make) -> dict[str, Any]:
    """One pair."""
    before, after = make(True), make(False)
    for _ in range(_WARM):
        before()
        after()
    with collecting_nothing():
        turns = steady_turns(before, after)
        runs = gaps_of(session, before)
    loop_us = statistics.median(turn.loop_us for turn in turns)
    session.forget()
    with session.recording():
        before()
    torch.cuda.synchronize()
    issue_us = statistics.median(turn.issue_us for turn in turns)
    watched = typical(session.graph, runs, issue_us)
    if watched is not None:
        keep_times(session.graph, watched, loop_us=loop_us)
    priced = report(session.graph, replace(prices, host=prices.host.at_speed(loop_us)))
    found = [finding.saves_us for finding in priced.findings if finding.kind == kind]
    claims = [claim for claim in found if claim is not None]
    saved = sorted(turn.before_us - turn.after_us for turn in turns)
    last = len(saved) - 1
    return {
        "kind": kind,
        "pair": make.__name__,
        "claimed_us": round(sum(claims), 1) if claims else None,
        "saved_us": round(statistics.median(saved), 1),
        "saved_p10_us": round(saved[round(0.1 * last)], 1),
        "saved_p90_us": round(saved[round(0.9 * last)], 1),
        "before_us": round(statistics.median(turn.before_us for turn in turns), 1),
        "after_us": round(statistics.median(turn.after_us for turn in turns), 1),
        "predicted_before_us": round(priced.timeline.wall_us, 1),
        "loop_us": round(loop_us, 3),
        "turns": len(turns),
    }


@contextmanager
def collecting_nothing() -> Iterator[None]:
    """Inside no collection of garbage falls into a timing."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def steady_turns(before: Callable[[], object], after: Callable[[], object]) -> list[Turn]:
    """Turns taken at the host's best speed, until there are enough; those taken nearest to it where the time is over.

    Every other turn begins with the second twin: neither always follows the reference loop.
    """
    turns: list[Turn] = []
    end = perf_counter() + _SECONDS
    while True:
        around = loop_turn_us()
        if len(turns) % 2:
            new, old = times_us(after), times_us(before)
        else:
            old, new = times_us(before), times_us(after)
        turns.append(Turn(old[1], new[1], old[0], max(around, loop_turn_us())))
        quickest = sorted(turns, key=lambda turn: turn.loop_us)
        steady = [turn for turn in quickest if turn.loop_us <= quickest[0].loop_us * (1 + TOLERANCE)]
        if len(steady) >= _TURNS:
            return steady
        if len(turns) >= _TURNS and perf_counter() > end:
            return quickest[:_TURNS]


def gaps_of(session: Session, step: Callable[[], object]) -> list[Gaps]:
    """What passed between a step's calls in runs at the host's best speed."""
    runs: list[Gaps] = []

    def run() -> tuple[float]:
        torch.cuda.synchronize()
        runs.append(session.time_gaps(step))
        return (len(runs) - 1,)

    return [runs[int(timing.us[0])] for timing in undisturbed([timed(run) for _ in range(_TIMED)])]


def times_us(step: Callable[[], object]) -> tuple[float, float]:
    """From an empty queue until the host is done, and to the end of the synchronize."""
    torch.cuda.synchronize()
    start = perf_counter()
    step()
    issued = perf_counter()
    torch.cuda.synchronize()
    return (issued - start) * 1e6, (perf_counter() - start) * 1e6


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
