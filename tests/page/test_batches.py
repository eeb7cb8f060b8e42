"""``--batch 1,4``: one page of the program at each size, each traced and priced by Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optrace.cli import main

PROGRAM = """
import torch
model = torch.nn.Linear(512, 256)
def get_inputs(batch=2): return (torch.ones(batch, 512),)
"""
#: A float32 addmm: input, weight, bias, output.
TENSOR_BYTES = {batch: 4 * (512 * batch + 512 * 256 + 256 + 256 * batch) for batch in (1, 4, 64)}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batches")
    (folder / "model.py").write_text(PROGRAM)
    report = folder / "report.html"
    assert main([str(folder / "model.py"), "-q", "--batch", "1,4,64", "--out", str(report)]) == 0
    return report


def test_the_page_switches_between_batches(page: Path, open_page: Any) -> None:
    opened = open_page(page)
    assert opened.page.locator("#knob-batch option").all_inner_texts() == ["1", "4", "64"]
    for batch, nbytes in TENSOR_BYTES.items():
        opened.choose("batch", str(batch))
        opened.tab("tables")
        opened.page.locator("#tables-place .grid-row", has_text="addmm").click()
        opened.settle()
        held = opened.page.locator("#panel dt", has_text="tensors hold").locator(
            "xpath=following-sibling::dd[1]"
        )
        assert held.inner_text() == f"{nbytes / 1e3:.0f} kB"


def test_several_sizes_need_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text(PROGRAM)
    assert (
        main([str(tmp_path / "model.py"), "-q", "--batch", "1,4", "--out", str(tmp_path / "graph.svg")]) == 2
    )
    assert "--batch 1,4: several sizes are for a page" in capsys.readouterr().err
    assert not (tmp_path / "graph.svg").exists()
