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


@without_gpu
def test_it_takes_the_options_of_models_and_prices(optrace: Command, write: Write) -> None:
    write("")
    model = ["--train", "--optimizer", "sgd", "--dtype", "bf16", "--autocast", "--no-grad", "--batch", "2"]
    prices = [
        "--gpu",
        "h100",
        "--host",
        "default",
        "--dispatch-us",
        "1",
        "--launch-us",
        "1",
        "--bandwidth-tb",
        "1",
    ]
    ran = optrace("measure", "model.py", *model, *prices, "--", "--own", "argument")
    assert "needs a CUDA GPU" in ran.err  # asked after the options were read


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["graph.json"], "graph.json is a recorded graph"),
        (["model.py", "--save", "record.csv"], "cannot write record.csv: a record is JSON lines"),
        (["model.py", "--counters", "no/such/dram.jsonl"], "there is no folder"),
        (["model.py", "-o", "graph.json"], "cannot write graph.json: the view is a picture or a page"),
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
