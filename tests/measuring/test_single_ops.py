"""The single ops of ``single_ops.py``: what agrees must go on doing so."""

import numpy as np
import pytest

from tests.measuring.single_ops import Case, cases


@pytest.fixture(scope="module")
def found() -> list[Case]:
    return list(cases())


def test_launches_are_right(found: list[Case]) -> None:
    assert len(found) == 185
    assert [case.name for case in found if case.launches != case.recorded_launches] == []


def test_bytes_agree_with_a_warm_cache(found: list[Case]) -> None:
    """A repeated call: 172 of 185 today; the others' operands take 17 to 70 MB, near what the L2 holds."""
    assert sum(case.agrees(case.warm, case.measured_warm) for case in found) >= 172


def test_reads_agree_with_a_cold_cache(found: list[Case]) -> None:
    """Each kernel after a flush: 179 of 183, and within 0.3 % in the median where a MB is read."""
    pairs = [(case, case.measured_cold_read) for case in found if case.measured_cold_read is not None]
    assert len(pairs) == 183
    assert sum(case.agrees(case.cold_read, measured) for case, measured in pairs) >= 179
    off = [abs(case.cold_read / measured - 1) for case, measured in pairs if measured >= 1_000_000]
    assert np.median(off) <= 0.003
    assert np.percentile(off, 90) <= 0.065


def test_a_case_agrees_within_a_tenth_of_what_it_touches() -> None:
    case = Case("add_8x8", 1, 1, 3_000_000, 0, 0, 0, None, 1)
    assert (case.op, case.size) == ("add", "8x8")
    assert case.agrees(2_700_000, 3_000_000)
    assert not case.agrees(2_600_000, 3_000_000)
    assert case.agrees(0, 300_000)  # of 3 MB
    assert not case.agrees(0, 400_000)
