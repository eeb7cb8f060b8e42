"""A budget as a test would assert it, and what is told when it is passed."""

import torch

from optrace.testing import assert_budget


def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.lerp(x, y, 0.1)


def update_by_hand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * 0.9 + y * 0.1


x, y = torch.randn(4096, 4096), torch.randn(4096, 4096)
before = assert_budget(update, x, y, launches=1, syncs=0)
try:
    assert_budget(update_by_hand, x, y, launches="baseline", hbm_bytes="baseline + 5 %", baseline=before)
except AssertionError as error:
    print(error)
else:
    raise SystemExit("three launches passed for one")
