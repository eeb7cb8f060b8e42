"""A compact golden: the calls of recorded programs on an H200.

    python -m tests.standin.golden RECORD.jsonl.gz

writes `golden_h200_torch211.json.gz` from a record: the programs of `programs.py`, each call stored once.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.standin.compare_record import Call, read_record

GOLDEN = Path(__file__).with_name("golden_h200_torch211.json.gz")


def _tuples(value: Any) -> Any:
    """JSON has no tuples: put those back that mark tensors."""
    if isinstance(value, list):
        if len(value) == 5 and value[0] == "tensor":
            return ("tensor", value[1], value[2], value[3], value[4])
        return [_tuples(v) for v in value]
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return value


def read_golden() -> dict[str, list[Call]]:
    """The calls of each program in the golden."""
    with gzip.open(GOLDEN, "rt") as file:
        stored = json.load(file)
    calls = [
        Call(op, _tuples(args), _tuples(kwargs), _tuples(out)) for op, args, kwargs, out in stored["calls"]
    ]
    return {name: [calls[i] for i in order] for name, order in stored["programs"].items()}


def write_golden(record: Path, names: Iterable[str]) -> None:
    """Store the named programs of a record."""
    numbers: dict[str, int] = {}
    programs: dict[str, list[int]] = {}
    recorded = read_record(record)
    for name in names:
        rows = [json.dumps([c.op, c.args, c.kwargs, c.out]) for c in recorded[name]]
        programs[name] = [numbers.setdefault(row, len(numbers)) for row in rows]
    stored = {"programs": programs, "calls": [json.loads(row) for row in numbers]}
    with gzip.GzipFile(GOLDEN, "wb", mtime=0) as file:
        file.write(json.dumps(stored, separators=(",", ":")).encode())


if __name__ == "__main__":
    from tests.standin.programs import PROGRAMS

    hf = ("hf_gpt2_prefill_b1_s512_bf16", "hf_distilbert_infer_b1_s64")
    write_golden(Path(sys.argv[1]), [*PROGRAMS, *hf])
