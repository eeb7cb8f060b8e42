"""A whole validation on this machine's GPU, each stage with a limit and its outputs in FOLDER.

    python -m tests.measuring.sitting FOLDER [STAGE ...]

| stage | what it does | what it leaves |
|---|---|---|
| calibrate | ``optrace calibrate --save`` | ``profiles/`` |
| measure | ``optrace measure`` of each program of ``sitting_programs.py`` | ``records/``, and all of them in ``record.jsonl.gz`` |
| accuracy | ``optrace accuracy`` of that record with the host as it was calibrated | ``accuracy.txt``, ``accuracy.json`` |
| pairs | findings' claims beside what the change bought (``before_after.py``) | ``pairs.jsonl`` |
| verify | ``optrace FILE --verify`` of each program of ``verified/``; what it predicts is in its log | ``cures.jsonl`` |

Without a STAGE all of them. What is there is not made again: after an interruption the same command goes on. Each command's
output is in ``logs/``; ``sitting.json`` says what became of each. It takes about 15 minutes. The exit code is 1 where a
command failed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.measuring.sitting_programs import PROGRAMS

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OPTRACE = (sys.executable, "-m", "optrace.cli")

#: Options of the programs in ``verified/``: two are models, the others mark no step and are warm after one.
_MODELS = frozenset({"ffn_infer_bf16", "moe_infer_bf16"})


@dataclass(frozen=True, slots=True)
class Job:
    """One command and the seconds that it may take. ``leaves`` is there once it is done; ``prints``: and is what the
    command printed. ``only_if`` has to be there before."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    leaves: Path
    prints: bool = False
    only_if: Path | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job: ``done``, ``there`` (made before), ``failed``, ``too long`` or ``left out``."""

    job: str
    result: str
    seconds: float = 0.0
    code: int | None = None


def calibrate(folder: Path) -> Iterator[Job]:
    profiles = folder / "profiles"
    yield Job("calibrate", (*OPTRACE, "calibrate", "--save", str(profiles)), 180, profiles)


def measure(folder: Path) -> Iterator[Job]:
    for name in PROGRAMS:
        record = folder / "records" / f"{name}.jsonl.gz"
        program = f"{HERE / 'sitting_programs.py'}:{name}"
        options = ("--seconds", "0.5", "--limit", "20", *host_options(folder), "--save", str(record))
        yield Job(f"measure-{name}", (*OPTRACE, "measure", program, *options), 120, record)


def accuracy(folder: Path) -> Iterator[Job]:
    record = folder / "record.jsonl.gz"
    merge(folder / "records", record)
    command = (*OPTRACE, "accuracy", str(record), *host_options(folder))
    yield Job("accuracy", command, 300, folder / "accuracy.txt", True, record)
    yield Job("accuracy-json", (*command, "--json"), 300, folder / "accuracy.json", True, record)


def pairs(folder: Path) -> Iterator[Job]:
    found = folder / "pairs.jsonl"
    host = host_options(folder)[1:]
    yield Job("pairs", (sys.executable, "-m", "tests.measuring.before_after", str(found), *host), 300, found)


def verify(folder: Path) -> Iterator[Job]:
    for file in sorted((HERE / "verified").glob("*.py")):
        done = folder / "verified" / f"{file.stem}.jsonl"
        options = (*verified_options(file.stem), *host_options(folder), "--save-cures", str(done))
        yield Job(f"verify-{file.stem}", (*OPTRACE, str(file), *options, "--verify"), 300, done)


STAGES: Mapping[str, Callable[[Path], Iterator[Job]]] = {
    stage.__name__: stage for stage in (calibrate, measure, accuracy, pairs, verify)
}


def verified_options(name: str) -> tuple[str, ...]:
    """How a program of ``verified/`` is run."""
    return ("--dtype", "bf16", "--no-grad") if name in _MODELS else ("--warmup", "1")


def host_options(folder: Path) -> tuple[str, ...]:
    """The host as it was calibrated here; none where it was not."""
    profiles = sorted((folder / "profiles" / "host").glob("*.toml"))
    return ("--host", str(profiles[0])) if profiles else ()


def merge(records: Path, into: Path) -> None:
    """All records of a folder as one, with the first one's machine; nothing where there is none."""
    machine, rows = "", []
    for path in sorted(records.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            first, *programs = file
        machine = machine or first
        rows += programs
    if rows:
        with gzip.open(into, "wt") as file:
            file.writelines([machine, *rows])


def run(job: Job, folder: Path) -> Outcome:
    """Run the command, its output into ``logs/``; end it with all that it started once its time is over."""
    if job.leaves.exists():
        return Outcome(job.name, "there")
    if job.only_if is not None and not job.only_if.exists():
        return Outcome(job.name, "left out")
    log = folder / "logs" / f"{job.name}.txt"
    for path in (log, job.leaves):
        path.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    printed = job.leaves.with_name(job.leaves.name + ".part") if job.prints else log
    with printed.open("w") as out, log.open("a") as errors:
        process = subprocess.Popen(
            job.command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors if job.prints else subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            code = process.wait(job.limit_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Outcome(job.name, "too long", time.monotonic() - started)
    if code == 0 and job.prints:
        printed.replace(job.leaves)
    return Outcome(job.name, "failed" if code else "done", time.monotonic() - started, code)


def sit(folder: Path, stages: Sequence[str]) -> list[Outcome]:
    """Run the stages' jobs one after the other; what became of each is told and kept in ``sitting.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    for stage in stages:
        for job in STAGES[stage](folder):
            outcomes.append(run(job, folder))
            last = outcomes[-1]
            print(f"{last.result:8} {last.seconds:4.0f} s  {last.job}", flush=True)
            (folder / "sitting.json").write_text(
                json.dumps([asdict(outcome) for outcome in outcomes], indent=1)
            )
    gather(folder)
    return outcomes


def gather(folder: Path) -> None:
    """The verified programs' lines as one file."""
    lines = [path.read_text() for path in sorted((folder / "verified").glob("*.jsonl"))]
    if lines:
        (folder / "cures.jsonl").write_text("".join(lines))


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.measuring.sitting", description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("stages", metavar="STAGE", nargs="*", help=f"of {', '.join(STAGES)}")
    asked = parser.parse_args(words)
    unknown = [stage for stage in asked.stages if stage not in STAGES]
    if unknown:
        parser.error(f"no stage {unknown[0]!r} (one of {', '.join(STAGES)})")
    import torch

    if not torch.cuda.is_available():
        parser.error("a sitting measures a CUDA GPU, and this machine has none")
    outcomes = sit(asked.folder.resolve(), asked.stages or list(STAGES))
    return int(any(outcome.result not in ("done", "there") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
