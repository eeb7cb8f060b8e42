"""``optrace measure`` where it cannot be: one clear error and no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Command, Write

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


@without_gpu
def test_without_a_gpu(optrace: Command, write: Write) -> None:
    write("raise RuntimeError('never run')")
    ran = optrace("measure", "model.py", "--save", "record.jsonl.gz")
    assert ran.code == 2
    assert ran.out == ""
    assert (
        ran.err
        == "optrace: optrace measure needs a CUDA GPU and torch sees none: `optrace model.py` predicts without one\n"
    )
    assert not Path("record.jsonl.gz").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["graph.json"], "graph.json is a recorded graph"),
        (["model.py", "--save", "record.csv"], "cannot write record.csv: a record is JSON lines"),
        (["model.py", "--counters", "no/such/dram.jsonl"], "there is no folder"),
        (["model.py", "-o", "graph.json"], "cannot write graph.json: the view is a picture"),
        (["model.py", "-o", "graph.gif"], "cannot write graph.gif"),
        (["model.py", "--limit", "0"], "--limit"),
        (["model.py", "--repeats", "1"], "--repeats"),
    ],
)
def test_bad_input(optrace: Command, folder: Path, words: list[str], message: str) -> None:
    ran = optrace("measure", *words)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
