"""What findings claim beside what the change bought: each pair of programs timed in turns on this machine's GPU.

    python -m tests.measuring.before_after FILE.jsonl [HOST]

A line a pair: ``kind``, ``pair``, ``claimed_us`` (with the profile HOST, the Python between the first twin's calls as it was
timed), ``saved_us`` (median wall clock before less after), its tenth and ninetieth percentile over the turns, and the
medians of both.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from optrace.cost.profiles import Pricing, find_gpu, pricing
from optrace.measuring.steady import TOLERANCE, loop_turn_us
from optrace.report import report
from optrace.tracing import Session, open_session
from optrace.tracing.gaps import keep_times
from tests.diagnosis.findings import programs
from tests.diagnosis.findings.programs import PAIRS, Make

#: Of ``PAIRS``, those whose twin does the same work with the change made.
BEFORE_AFTER: tuple[Make, ...] = (
    programs.item_in_a_loop,
    programs.batch_to_the_gpu,
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

_WARM, _TURNS, _TIMED = 5, 40, 5


def main(out: Path, host: str | None = None) -> None:
    """Measure each pair, into a file beside ``out`` that takes its name in the end."""
    prices = pricing(find_gpu(torch.cuda.get_device_name()).key, host)
    kinds = {make: kind for kind, makes in PAIRS.items() for make in makes}
    part = out.with_name(out.name + ".part")
    with open_session("cuda") as session, part.open("w") as file:
        for make in BEFORE_AFTER:
            row = measured(session, prices, kinds[make], make)
            print(json.dumps(row), file=file, flush=True)
            figures = f"~{row['claimed_us']:,.0f} / {row['saved_us']:,.0f} us"
            print(f"{row['kind']:22} {row['pair']:28} {figures}", flush=True)
    part.replace(out)


def measured(session: Session, prices: Pricing, kind: str, make: Make) -> dict[str, Any]:
    """One pair."""
    before, after = make(True), make(False)
    for _ in range(_WARM):
        before()
        after()
    turns = []
    for _ in range(_TURNS):
        around = loop_turn_us()
        turns.append((times_us(before), times_us(after)[1], max(around, loop_turn_us())))
    best = min(loop for *_, loop in turns)
    steady = [turn for turn in turns if turn[2] <= best * (1 + TOLERANCE)]
    loop_us = statistics.median(loop for *_, loop in steady)
    issue_us = statistics.median(issued for (issued, _), *_ in steady)
    runs = [session.time_gaps(before) for _ in range(_TIMED)]
    session.forget()
    with session.recording():
        before()
    torch.cuda.synchronize()
    keep_times(session.graph, runs, loop_us=loop_us, issue_us=issue_us)
    priced = report(session.graph, replace(prices, host=prices.host.at_speed(loop_us)))
    claims = [finding.saves_us for finding in priced.findings if finding.kind == kind]
    saved = sorted(old - new for (_, old), new, _ in steady)
    last = len(saved) - 1
    return {
        "kind": kind,
        "pair": make.__name__,
        "claimed_us": round(sum(claim or 0.0 for claim in claims), 1),
        "saved_us": round(statistics.median(saved), 1),
        "saved_p10_us": round(saved[round(0.1 * last)], 1),
        "saved_p90_us": round(saved[round(0.9 * last)], 1),
        "before_us": round(statistics.median(old for (_, old), *_ in steady), 1),
        "after_us": round(statistics.median(new for _, new, _ in steady), 1),
        "turns": len(steady),
    }


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
