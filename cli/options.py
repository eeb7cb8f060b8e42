"""Choices that the command line knows without importing torch, and help by groups of options."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from typer.core import TyperCommand


class Mode(StrEnum):
    """As ``optrace.tracing.MODES``."""

    AUTO = "auto"
    FAKE = "fake"
    CPU = "cpu"
    CUDA = "cuda"


class Device(StrEnum):
    """As ``optrace.tracing.DEVICES``."""

    CUDA = "cuda"
    CPU = "cpu"


class Assume(StrEnum):
    """What a fake tensor answers when the program asks for its value."""

    ERROR = "error"
    ZERO = "zero"
    WORST = "worst"


class ProgramCommand(TyperCommand):
    """A command whose words after ``--`` are the program's own: ``ctx.obj`` holds them, or None without ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.obj = args[:cut], tuple(args[cut + 1 :])
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the same whatever was given
        return ["[OPTIONS] TARGET [-- ARGUMENTS OF THE PROGRAM]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Options under the heading that each names."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                groups.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records)
