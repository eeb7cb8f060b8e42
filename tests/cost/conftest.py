from __future__ import annotations

import pytest

from tests.cost.calls import TARGET, Maker


@pytest.fixture
def maker():
    return Maker()


@pytest.fixture
def target():
    return TARGET
