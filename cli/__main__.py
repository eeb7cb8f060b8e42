"""``python -m optrace.cli``."""

from .dispatch import run

run()
