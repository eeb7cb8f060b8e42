from __future__ import annotations

import doctest

import pytest

from optrace import units


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(units).failed == 0


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (999.4, "~999 us"),
        (999.6, "~1 ms"),
        (1234.0, "~1.23 ms"),
        (5_000_000.0, "~5 s"),
        (36_000_000_000.0, "~36,000 s"),
        (1e-7, "~0 us"),
    ],
)
def test_a_time_keeps_three_digits_and_rolls_over(us: float, shown: str) -> None:
    assert units.predicted_us(us) == shown


@pytest.mark.parametrize(
    "shown", [units.moved(None), units.allocated(None), units.flop(None), units.count(None)]
)
def test_what_is_not_known_is_no_number(shown: str) -> None:
    assert shown == "?"


def test_decimal_for_bytes_that_move_binary_for_bytes_that_stand() -> None:
    assert units.moved(1 << 20) == "1.05 MB"
    assert units.allocated(1 << 20) == "1 MiB"
