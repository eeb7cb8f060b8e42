"""37 ops at five sizes, as they ran on an H200: launches, and bytes through HBM with warm and with cold caches.

``python -m tests.measuring.single_ops`` prints the table of docs/accuracy.md and how many cases agree. Warm: a
repeated call, caches left as they are. Cold: each kernel right after a flush, so that all that it reads comes from HBM,
once or, where it reads again what has left the L2, more often.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optrace.cost.l2 import L2Cache, Touches, touches_of
from optrace.cost.profiles import pricing
from optrace.cost.rules import work_of
from optrace.measuring.record import MeasuredRun, read_dram, read_runs
from optrace.report import report

DATA = Path(__file__).parent / "data"
RECORD, COUNTERS = DATA / "h200_single_ops.jsonl.gz", DATA / "h200_single_ops_dram.jsonl.gz"
PRICING = pricing("h200")

#: Bytes of instructions, constants and tables that a kernel fetches besides its operands, at most: 4 to 70 KB were.
KERNEL_BYTES = 100_000
#: A difference that is no more than this share of the bytes which the op touches counts as agreement.
AGREES = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """One op at one size; bytes of its kernels (what the copy engine moves has no counters), ``cold_*`` those read."""

    name: str
    launches: int
    recorded_launches: int
    touched: int
    warm: int
    measured_warm: int
    cold_read: int
    measured_cold_read: int | None
    kernels: int

    @property
    def op(self) -> str:
        return self.name.rsplit("_", 1)[0]

    @property
    def size(self) -> str:
        return self.name.rsplit("_", 1)[1]

    def agrees(self, predicted: int, measured: int) -> bool:
        room = max(AGREES * max(self.touched, measured), KERNEL_BYTES * self.kernels)
        return abs(predicted - measured) <= room


def cases(record: Path = RECORD, counters: Path = COUNTERS) -> Iterator[Case]:
    """The cases of a record, in its order."""
    warm = read_dram(counters)
    with gzip.open(counters, "rt") as file:
        next(file)
        cold = {row["name"]: row.get("cold_read") for row in map(json.loads, file)}
    for run in read_runs(record):
        costs = [cost for cost in report(run.graph, PRICING).costs if cost.work.kernels]
        traffic = [cost.traffic for cost in costs]
        yield Case(
            name=run.name,
            launches=sum(cost.launches or 0 for cost in costs),
            recorded_launches=sum(map(len, run.launches)),
            touched=sum(cost.work.tensor_bytes for cost in costs),
            warm=sum(t.read + t.written - t.copy_read - t.copy_written for t in traffic),
            measured_warm=sum(kernel.read + kernel.written for kernel in warm[run.name]),
            cold_read=cold_read(run),
            measured_cold_read=cold[run.name],
            kernels=len(warm[run.name]),
        )


def cold_read(run: MeasuredRun) -> int:
    """Bytes that the run's kernels read from HBM, each of them with an empty cache before it."""
    read, l2_bytes = 0, PRICING.gpu.l2_bytes
    for node in run.graph:
        work = work_of(node, PRICING.target(run.graph.info))
        if not work.kernels:
            continue
        touches = touches_of(work, lambda storage: run.graph.storages[storage].nbytes, l2_bytes)
        read += touches.again
        for one in touches.passes:
            cache, addresses, end = L2Cache(l2_bytes), [], 0
            for block in touches.blocks:
                size = run.graph.storages[block].nbytes if block >= 0 else max(1, work.temporaries[~block])
                cache.place(end, size)
                addresses.append(end)
                end += size
            if not one.is_copy:
                alone = Touches(touches.blocks, touches.touched, (one,), 0)
                read += cache.run(alone, addresses).read
    return read


def main() -> None:
    found = list(cases())
    sizes = list(dict.fromkeys(case.size for case in found))
    print("| op | " + " | ".join(sizes) + " |\n|---|" + "---|" * len(sizes))
    for op in dict.fromkeys(case.op for case in found):
        print(f"| {op} | " + " | ".join(_cell(case) for case in found if case.op == op) + " |")
    known = [case for case in found if case.measured_cold_read is not None]
    print(f"\nlaunches: {sum(c.launches == c.recorded_launches for c in found)} of {len(found)}")
    for name, some, pairs in (
        ("warm bytes", found, [(c.warm, c.measured_warm) for c in found]),
        ("cold reads", known, [(c.cold_read, c.measured_cold_read or 0) for c in known]),
    ):
        agreeing = [c.agrees(*pair) for c, pair in zip(some, pairs, strict=True)]
        off = sorted(abs(p / m - 1) for p, m in pairs if m >= 1_000_000)
        print(f"{name}: {sum(agreeing)} of {len(some)} agree; of {len(off)} that move a MB the median is "
              f"{off[len(off) // 2]:.1%} off, nine in ten at most {off[len(off) * 9 // 10]:.1%}; not: "
              + ", ".join(c.name for c, agrees in zip(some, agreeing, strict=True) if not agrees))  # fmt: skip


def _cell(case: Case) -> str:
    """Launches, MB through HBM where it is one and more, and MB read after a flush."""
    parts = [
        f"{case.launches}"
        if case.launches == case.recorded_launches
        else f"~{case.launches}/{case.recorded_launches}"
    ]
    if max(case.warm, case.measured_warm) >= 1_000_000:
        parts.append(f"~{case.warm / 1e6:,.0f}/{case.measured_warm / 1e6:,.0f}")
    measured = case.measured_cold_read
    if measured is not None and measured >= 1_000_000:
        parts.append(f"~{case.cold_read / 1e6:,.0f}/{measured / 1e6:,.0f}")
    return "; ".join(parts)


if __name__ == "__main__":
    main()
