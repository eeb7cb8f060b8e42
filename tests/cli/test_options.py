"""Options that several commands share."""

from typing import get_args

import pytest
from optrace.cli import options

SHARED = {name: get_args(value)[1] for name, value in vars(options).items() if name.endswith("Option")}


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_option_names_itself(name: str) -> None:
    """typer 0.27 gives an option without a name of its own the name of the first command's parameter, or none."""
    # In an annotation typer takes the first word of a declaration for a default, and moves it later.
    first = SHARED[name].default
    assert isinstance(first, str)
    assert first.startswith("--")


def test_shared_options_are_found() -> None:
    assert {"DtypeOption", "GpuOption", "BatchOption"} <= SHARED.keys()
