"""Limits and what a run has, in words: what the terminal, JUnit and annotations say."""

from __future__ import annotations

from optrace import units
from optrace.diagnosis.gate import Culprit, Outcome
from optrace.rendering.figures import FIGURES, difference


def amount(outcome: Outcome, value: float) -> str:
    """A value of the limit's figure."""
    row = FIGURES.get(outcome.limit.figure)
    return units.count(value) if row is None else row.text(value)


def state(outcome: Outcome) -> str:
    """``ok``, ``over``, or for a time ``slow``."""
    if not outcome.over:
        return "ok"
    return "over" if outcome.fails else "slow"


def allowed(outcome: Outcome) -> str:
    """What is allowed, and where it comes from: ``120 (baseline 118 + 2 %)``."""
    text = amount(outcome, outcome.allowed)
    if outcome.baseline is None:
        return text
    tolerance = outcome.limit.over_baseline or 0.0
    return f"{text} (baseline {amount(outcome, outcome.baseline)}{f' + {100 * tolerance:g} %' if tolerance else ''})"


def sentence(outcome: Outcome) -> str:
    """``launches: 132, allowed 120 (baseline 118 + 2 %): +12 over``."""
    unknown = f" + {units.UNKNOWN}" if outcome.unknown else ""
    where = f" in {outcome.where}" if outcome.where and outcome.where != outcome.limit.module else ""
    text = (
        f"{outcome.limit.name}: {amount(outcome, outcome.value)}{unknown}{where}, allowed {allowed(outcome)}"
    )
    if not outcome.over:
        return text
    return f"{text}: {_signed(outcome, outcome.value - outcome.allowed)} over"


def culprit_text(outcome: Outcome, culprit: Culprit) -> str:
    """What adds to a figure that is over: ``+12  aten.add.Tensor x36, GPT.blocks.*.mlp, model.py:31``."""
    parts = [culprit.what, culprit.module, str(culprit.source or "")]
    shown = _signed(outcome, culprit.amount) if culprit.grew else amount(outcome, culprit.amount)
    return f"{shown}  {', '.join(part for part in parts if part)}"


def details(outcome: Outcome) -> list[str]:
    """The sentence, and a line for each of what adds most."""
    return [sentence(outcome), *(f"  {culprit_text(outcome, culprit)}" for culprit in outcome.culprits)]


def _signed(outcome: Outcome, value: float) -> str:
    name = outcome.limit.figure
    return difference(name, value) if name in FIGURES else f"{value:+,.0f}"
