"""For tests: a budget of launches, bytes and waits, asserted.

    from optrace.testing import assert_budget

    def test_decode_step():
        assert_budget(model.decode, token, cache, launches=120, syncs=0, hbm_bytes="1.2 GB")

With pytest the fixture ``optrace_trace`` comes with the package (``optrace.pytest_plugin``). Neither needs a GPU.
"""

from __future__ import annotations

import copy
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from optrace import units
from optrace.api import answers_of, load
from optrace.cost.profiles import pricing
from optrace.diagnosis.budget import limits_of
from optrace.diagnosis.findings import find
from optrace.diagnosis.gate import check_modules, hold, store
from optrace.rendering.budget import details
from optrace.report import Report
from optrace.report import report as make_report
from optrace.tracing import Mode, Session, open_session

#: A count, or a text as budget files have it: ``"2 GiB"``, ``"baseline"``, ``"baseline + 5 %"``.
Allowed = int | float | str


class BudgetWarning(UserWarning):
    """A predicted time is over its limit, or calls are left out of a figure. Nothing fails for it."""


def assert_budget(
    fn: Callable[..., object],
    *args: Any,
    launches: Allowed | None = None,
    hbm_bytes: Allowed | None = None,
    peak_bytes: Allowed | None = None,
    flops: Allowed | None = None,
    syncs: Allowed | None = None,
    wall_us: Allowed | None = None,
    findings: Sequence[str] | Mapping[str, int] | None = None,
    modules: Mapping[str, Mapping[str, Allowed]] | None = None,
    baseline: Report | str | PathLike[str] | None = None,
    gpu: str = "h200",
    host: str | None = None,
    mode: Mode = "fake",
    device: str = "cuda",
    assume: Literal["error", "zero", "worst"] = "zero",
) -> Report:
    """Run ``fn(*args)`` once under the recorder and hold it against limits; return its report.

    Of a module given as ``fn`` (or whose method it is), and of modules, tensors and optimizers in ``args``, copies are
    moved to the traced device first; a function should make its tensors on ``"cuda"``, or take them as arguments. Limits are those of a budget file
    (``docs/budget.md``): the most of each figure; kinds of ``findings`` that must not be found; ``modules``, limits by
    glob of module paths. ``baseline`` is a report or a ``graph.json``: limits such as ``"baseline + 5 %"`` refer to it,
    and what grew since is told. ``assume`` is what ``.item()`` answers where nothing is computed.

    Raises ``AssertionError`` with what is over, and the ops that add most or that grew; ``BudgetError`` for a limit
    that cannot be checked; what ``fn`` raises. Times only warn (``BudgetWarning``): they come from a profile.
    """
    __tracebackhide__ = True
    given = {
        "launches": launches,
        "hbm_bytes": hbm_bytes,
        "peak_bytes": peak_bytes,
        "flops": flops,
        "syncs": syncs,
        "wall_us": wall_us,
        "findings": list(findings) if isinstance(findings, Sequence) else findings,
        "modules": modules,
    }
    limits = limits_of({name: value for name, value in given.items() if value is not None}, "assert_budget")
    if not limits:
        raise ValueError(
            "assert_budget was given no limit: launches, hbm_bytes, peak_bytes, flops, syncs, ..."
        )
    report = _run(fn, args, gpu, host, mode, device, assume)
    before = None
    if baseline is not None:
        kept = baseline if isinstance(baseline, Report) else load(Path(baseline))
        before = store(kept, find(kept), limits)
    check_modules(report.graph, limits, "assert_budget")
    outcomes = hold(report, report.findings, limits, before)
    said = [line for outcome in outcomes if outcome.fails for line in details(outcome)]
    if said:
        count = sum(outcome.fails for outcome in outcomes)
        raise AssertionError(
            "\n".join([f"over budget: {count} of {units.counted(len(outcomes), 'limit')}", *said])
        )
    for outcome in outcomes:
        if outcome.over:
            warnings.warn("\n".join(details(outcome)), BudgetWarning, stacklevel=2)
        elif outcome.unknown:
            left_out = f"{outcome.limit.name} leaves out {units.counted(outcome.unknown, 'call')} for which it is not known"
            warnings.warn(left_out, BudgetWarning, stacklevel=2)
    return report


def _run(
    fn: Callable[..., object],
    args: Sequence[object],
    gpu: str,
    host: str | None,
    mode: Mode,
    device: str,
    assume: Literal["error", "zero", "worst"],
) -> Report:
    __tracebackhide__ = True
    priced_as = pricing(gpu, host)
    answers = answers_of(priced_as.gpu)
    name = getattr(fn, "__qualname__", type(fn).__name__)
    # One copy of all, so that what they share stays shared; before the session, in which real tensors cannot be copied.
    fn, args = copy.deepcopy((fn, list(args)))
    with open_session(mode, gpu=priced_as.gpu.key, answers=answers, device=device, assume=assume) as session:
        placed, moved = _placed(session, fn, args)
        with session.recording():
            placed(*moved)
        session.describe(name)
    return make_report(session.graph, priced_as)


def _placed(
    session: Session, fn: Callable[..., object], args: Sequence[object]
) -> tuple[Callable[..., object], list[object]]:
    """All on the traced device, referring to each other as before: an optimizer to its model's parameters."""
    owner = getattr(fn, "__self__", None)
    moved: dict[Tensor, Tensor] = {}

    def place(value: object) -> Any:
        if not isinstance(value, torch.nn.Module):
            return session.place(value)
        before = list(value.parameters())
        after = session.place(value)
        moved.update(zip(before, after.parameters(), strict=True))
        return after

    if isinstance(fn, torch.nn.Module):
        fn = place(fn)
    elif isinstance(owner, torch.nn.Module):
        fn = getattr(place(owner), fn.__name__)
    placed = [value if isinstance(value, torch.optim.Optimizer) else place(value) for value in args]
    for value in placed:
        if isinstance(value, torch.optim.Optimizer):
            for group in value.param_groups:
                group["params"] = [moved.get(parameter, parameter) for parameter in group["params"]]
            value.state = defaultdict(dict, {moved.get(key, key): kept for key, kept in value.state.items()})
            value.load_state_dict(value.state_dict())  # torch moves the state to where the parameters are
    return fn, placed
