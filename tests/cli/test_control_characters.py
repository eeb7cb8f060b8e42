"""What is in the names of a program reaches a terminal as escapes: it is shown and not obeyed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from optrace.cli.console import console, show, table_of
from rich.text import Text

from optrace.rendering import render
from tests.cli.conftest import Command, Write
from tests.rendering.by_hand import HandGraph

ESC, BEL, CSI = "\x1b", "\x07", "\x9b"
NAME = f"Net{ESC}]0;title{BEL}{CSI}2J"
SHOWN = r"Net\x1b]0;title\x07\x9b2J"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("file", [io.StringIO, Terminal])
def test_tables_show_them(file: type[io.StringIO]) -> None:
    out = file()
    table = table_of("name", "figure")
    table.add_row(NAME, "1")
    table.add_row(Text(NAME), "2")  # rich leaves out what rings
    show(console(out), table)
    show(console(out), NAME)
    printed = out.getvalue()
    assert printed.count(SHOWN) == 2
    assert SHOWN.replace(r"\x07", "") in printed
    assert not {BEL, CSI} & set(printed)
    assert f"{ESC}]" not in printed


@pytest.mark.parametrize(
    "words",
    [
        ["{name}", "--findings"],
        ["diff", "{name}", "{name}"],
        ["scoreboard", "{name}", "--title", NAME],
        ["check", "{name}", "--github"],
        ["{name}.absent.json"],
    ],
    ids=["trace", "diff", "scoreboard", "check", "error"],
)
def test_commands_show_them(optrace: Command, write: Write, folder: Path, words: list[str]) -> None:
    hand = HandGraph(NAME)
    x = hand.tensor((8, 8))
    for _ in range(3):
        hand.call("aten.relu.default", [x], [hand.tensor((8, 8))], module=f"{NAME}.0", cls=NAME)
        hand.call(
            "aten._local_scalar_dense.default",
            [x],
            [],
            kernels=0,
            memcpys=1,
            host_wait=True,
            module=NAME,
            cls=NAME,
        )
    file = f"{NAME}.json".replace("/", "")
    render(hand.report(), folder / file)
    write(f'[modules."{NAME[:3]}*"]\nlaunches = 1'.replace(ESC, ""), "optrace.toml")
    ran = optrace(*(word.replace("{name}", file) for word in words))
    assert SHOWN in ran.out + ran.err
    assert not {ESC, BEL, CSI} & set(ran.out + ran.err)
