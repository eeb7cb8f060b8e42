from collections.abc import Iterator

import pytest

from optrace.tracing.standin import StandIn, standin


@pytest.fixture
def gpu() -> Iterator[StandIn]:
    with standin() as active:
        yield active
