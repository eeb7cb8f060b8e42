"""The published eager times of KernelBench on an H100, and what a datasheet profile predicts of the recorded calls.

    python -m tests.measuring.kernelbench RECORD.jsonl.gz PUBLISHED.json [GPU]

RECORD holds programs named ``kb<level>_<problem>_...``; PUBLISHED is the set's own table of results (``results/timing`` in
its repository): ``{level: {"<problem>_<name>.py": {"mean": milliseconds}}}``. GPU is a profile, ``h100`` if not said.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np

from optrace.cost.profiles import pricing
from optrace.measuring.record import read_runs
from optrace.report import report


def published_us(file: Path) -> dict[tuple[str, str], float]:
    """Microseconds by level and problem."""
    levels = json.loads(file.read_text())
    return {
        (level[-1], name.split("_")[0]): times["mean"] * 1e3
        for level, problems in levels.items()
        for name, times in problems.items()
    }


def main(record: Path, published: Path, gpu: str = "h100") -> None:
    times = published_us(published)
    prices = pricing(gpu)
    rows: list[tuple[str, str, float, float]] = []
    for run in read_runs(record):
        problem = re.match(r"kb(\d)_(\d+)_", run.name)
        if problem and (problem[1], problem[2]) in times:
            predicted_us = report(run.graph, prices).timeline.wall_us
            rows.append((problem[1], run.name, predicted_us, times[problem[1], problem[2]]))
    for level in ("1", "2", "3", "all"):
        errors = np.array([p / t - 1 for at, _, p, t in rows if level in (at, "all")])
        print(
            f"level {level:3}  {len(errors):3} problems  median {np.median(abs(errors)):6.1%}  mean {np.mean(abs(errors)):6.1%}  "
            f"p90 {np.percentile(abs(errors), 90):6.1%}  bias {np.median(errors):+.1%}"
        )
    for _, name, predicted_us, time_us in sorted(rows, key=lambda row: -abs(row[2] / row[3] - 1))[:6]:
        print(f"{name}  ~{predicted_us:,.0f} us, published {time_us:,.0f} us")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
