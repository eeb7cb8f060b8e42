"""Every kind is found in a program that has it, at the right line, and not in its twin."""

from __future__ import annotations

import pytest

from optrace.api import answers_of
from optrace.cost.profiles import pricing
from optrace.diagnosis.findings import KINDS, Finding
from optrace.report import report
from optrace.tracing import open_session
from tests.diagnosis.findings.programs import PAIRS, Make

ROWS = [(kind, make) for kind, makes in PAIRS.items() for make in makes]


def found(make: Make, bad: bool) -> dict[str, Finding]:
    """Findings of a step by kind; what is made before it is not recorded."""
    gpu = pricing("h200")
    with open_session("fake", gpu=gpu.gpu.key, answers=answers_of(gpu.gpu), assume="zero") as session:
        step = make(bad)
        with session.recording():
            step()
    return {finding.kind: finding for finding in report(session.graph, gpu).findings}


def test_every_kind_has_a_program_and_a_twin() -> None:
    assert set(PAIRS) == set(KINDS)


@pytest.mark.parametrize(("kind", "make"), ROWS, ids=[f"{kind}-{make.__name__}" for kind, make in ROWS])
def test_found_where_it_is_and_not_in_its_twin(kind: str, make: Make) -> None:
    bad = found(make, True)
    assert kind in bad
    finding = bad[kind]
    assert finding.source is not None
    assert finding.source.file.startswith("tests/diagnosis/findings/")
    assert finding.why.endswith(".")
    assert finding.change.endswith(".")
    assert finding.saves_us is None or finding.saves_us >= 0
    assert kind not in found(make, False)
