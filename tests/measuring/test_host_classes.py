"""The fit of calls' host costs from whole programs: programs made up, whose costs are known."""

from collections import Counter

import numpy as np
import pytest

from tests.measuring.host_classes import Program, family, fitted

COSTS = {"view": 4.0, "op": 20.0, "convolution": 40.0}


def made(number: int, speed: float) -> Program:
    draw = np.random.default_rng(number)
    counts = Counter({key: int(draw.integers(10, 200)) for key in COSTS})
    return Program(f"p{number}", counts, speed * sum(COSTS[key] * count for key, count in counts.items()))


def test_costs_are_found_through_a_host_that_was_slow_for_a_while() -> None:
    """24 programs, those in the middle on a host at 1 / 1.6 of its speed."""
    slow = range(8, 14)
    programs = [made(number, 1.6 if number in slow else 1.0) for number in range(24)]
    costs, speeds = fitted(programs, list(COSTS))
    assert costs.tolist() == pytest.approx(list(COSTS.values()), rel=0.1)
    assert speeds[list(slow)].median() == pytest.approx(1.6, rel=0.1)
    assert speeds[:6].median() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("tv_resnet50_infer_b32", "resnet"),
        ("timm_vit_base_patch16_224_train_b16", "vit"),
        ("kb3_16_DenseNet201", "kb3_16_DenseNet201"),
    ],
)
def test_a_family_is_a_model_of_any_size(name: str, of: str) -> None:
    assert family(name) == of
