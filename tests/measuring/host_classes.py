"""What calls cost the host, by class, from whole programs: a fit of their issue times alone.

    python -m tests.measuring.host_classes RECORD.jsonl.gz

A program's issue time is taken for the sum over its calls, times the host's speed of the moment. Nobody recorded that speed:
it is fitted besides, a number a program, which may differ from its neighbour's in the record only at a price, since a
virtual machine's host is slow for minutes and not for a program. Programs with a backward pass are left out (their record
does not say where it begins), and so are recurrent nets, whose launches are the library's.

Printed are microseconds a call with its Python, dispatcher and first launch at the host's typical best, fitted to the model
families of two thirds, to those of the third left out (the MD5 of a family's name is divisible by three), and to all.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from optrace.cost.host import host_class
from optrace.cost.profiles import pricing
from optrace.cost.rules import work_of
from optrace.measuring.record import MeasuredRun, read_runs

#: Classes that are told apart; all others that launch are ``op``.
_CLASSES = ("normalization", "attention", "convolution")
_PRODUCTS = ("matmul", "addmm")

#: How much a change of speed from one program to the next costs beside an error of the fit, and a speed that is not 1.
_CHANGE, _SPEED = 0.3, 0.02
#: Errors (of the logarithm) up to here count by their square, larger ones by their size.
_ERROR, _STEP = 0.05, 0.02


@dataclass(frozen=True, slots=True)
class Program:
    """What a program's calls are, how many of each, and what it took the host."""

    name: str
    counts: Counter[str]
    issue_us: float

    @property
    def held_out(self) -> bool:
        return int(hashlib.md5(family(self.name).encode()).hexdigest(), 16) % 3 == 0


def family(name: str) -> str:
    """``resnet`` of ``tv_resnet50_infer_b32``; each problem of KernelBench is one of its own."""
    found = re.match(r"(?:tv|timm|hf)_([a-z0-9]+?)(?:\d|_|$)", name)
    return found[1] if found else name


def counted(run: MeasuredRun) -> Program | None:
    """None for what is left out."""
    names = [run.graph.facts(call).packet for call in range(len(run.graph))]
    if run.issue_us is None or any("_backward" in name or "_cudnn_rnn" in name for name in names):
        return None
    target = pricing("h200").target(run.graph.info)
    counts = Counter({"step": 1})
    for node, name, launches in zip(run.graph, names, run.launches, strict=True):
        if not launches:
            counts["view"] += 1
            continue
        kind = host_class(name, work_of(node, target))
        counts[kind if kind in _CLASSES else "product" if kind in _PRODUCTS else "op"] += 1
        counts["further launch, cuDNN" if kind == "convolution" else "further launch"] += len(launches) - 1
    return Program(run.name, counts, run.issue_us)


def fitted(programs: Sequence[Program], keys: Sequence[str], start_us: float = 10.0) -> tuple[Tensor, Tensor]:
    """Microseconds by key, and the speeds."""
    counts = torch.tensor([[float(p.counts[key]) for key in keys] for p in programs], dtype=torch.float64)
    measured = torch.tensor([p.issue_us for p in programs], dtype=torch.float64).log()
    costs = torch.full((len(keys),), float(np.log(start_us)), dtype=torch.float64, requires_grad=True)
    speeds = torch.zeros(len(programs), dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS(
        [costs, speeds], max_iter=3000, line_search_fn="strong_wolfe", tolerance_change=1e-10
    )

    def closure() -> Tensor:
        solver.zero_grad()
        off = (counts @ costs.exp()).log() + speeds - measured
        loss = huber(off, _ERROR) + _CHANGE * huber(speeds.diff(), _STEP) + _SPEED * huber(speeds, _STEP)
        loss.backward()
        return loss

    solver.step(closure)
    return costs.detach().exp(), speeds.detach().exp()


def huber(values: Tensor, knee: float) -> Tensor:
    return torch.nn.functional.smooth_l1_loss(values, torch.zeros_like(values), beta=knee, reduction="sum")


def main(record: Path) -> None:
    programs = [program for run in read_runs(record) if (program := counted(run)) is not None]
    keys = sorted({key for program in programs for key in program.counts})
    sets = {
        "two thirds": [program for program in programs if not program.held_out],
        "one third": [program for program in programs if program.held_out],
        "all": programs,
    }
    found = {name: fitted(chosen, keys) for name, chosen in sets.items()}
    print(
        f"{'us a call':24} " + " ".join(f"{f'{name} ({len(chosen)})':>18}" for name, chosen in sets.items())
    )
    for place, key in enumerate(keys):
        print(f"{key:24} " + " ".join(f"{float(costs[place]):18.1f}" for costs, _ in found.values()))
    speeds = found["all"][1].numpy()
    large = np.array([sum(program.counts.values()) >= 100 for program in programs])
    for name, of in (("programs of 100 calls and more", large), ("smaller ones", ~large)):
        low, middle, high = np.percentile(speeds[of], (10, 50, 90))
        print(f"times the host's best, {name}: {middle:.2f} (10 to 90 %: {low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
