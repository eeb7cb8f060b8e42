"""Every block of code in the README and in docs/: Python is executed, commands are run and their output compared; ``text`` is
what something prints.

Blocks of a document share a folder, which holds the samples, and a namespace. Of an output, every line but ``...`` has to
come, in this order; predicted times, shares and what follows
from them are not compared, since a better model changes them; counts and bytes are.
What is not run is named in ``NOT_RUN`` with its reason.
"""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from optrace.cli import main

from optrace.diagnosis.budget import read_budget

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]

#: By document and first line.
NOT_RUN = {
    ("README.md", "pip install . && optrace samples/toy_block.py --out graph.svg    # the picture above, with no GPU and no dot installed"): "installs; CI runs both lines in a clean environment",
    ("docs/accuracy.md", "$ optrace measure tests/measuring/sitting_programs.py:residual_infer_b32 --host HOST"): "needs a GPU",
    ("docs/accuracy.md", "$ optrace measure tests/measuring/sitting_programs.py:decoder_train_b2_s128_sgd --host HOST"): "needs a GPU",
    ("docs/accuracy.md", "$ optrace measure tests/measuring/sitting_programs.py:experts_infer_bf16 --host HOST"): "needs a GPU",
    ("docs/accuracy.md", "$ optrace measure tests/measuring/sitting_programs.py:cells_train --host HOST"): "needs a GPU",
    ("docs/accuracy.md", "$ optrace measure tests/measuring/sitting_programs.py:unet_train_b2 --host HOST"): "needs a GPU",
    ("docs/accuracy.md", "$ optrace measure tests/measuring/sitting_programs.py:perceptron_train_b8192_fused --host HOST"): "needs a GPU",
    ("docs/calibrate.md", "optrace calibrate             # measure, print what differs from the shipped profiles, write nothing"): "needs a GPU",
    ("docs/folding.md", "optrace samples/llama_70b.py --train --dtype bf16 --out graph.svg"): "takes minutes",
    ("docs/folding.md", "optrace samples/rnn_unrolled.py --out graph.svg"): "takes minutes",
    ("docs/folding.md", "optrace samples/deepseek_moe.py --train --max-nodes 50 --out graph.svg"): "takes minutes",
    ("docs/sweep.md", "optrace sweep model.py --gpu h100,h200,b200 --batch 1,8,64 --dtype bf16,fp32 --out sweep.svg"): "model.py is the reader's own; tests/cli/test_sweep.py sweeps",
    ("docs/measure.md", "optrace measure MODEL.py --save record.jsonl.gz --out graph.svg"): "needs a GPU",
    ("docs/performance.md", "pip install -e '.[bench,transformers]' && python -m pytest tests/bench -s"): "installs, and takes minutes",
    ("docs/performance.md", "pip install -e '.[bench,transformers]' && python -m pytest tests/bench/test_pricing.py -s"): "installs, and takes minutes",
    ("docs/shell.md", 'eval "$(optrace completion bash)"'): "changes the shell that runs it; tests/cli/test_completion.py runs bash",
}  # fmt: skip

#: What a document's Python takes as given.
GIVEN = {
    "README.md": "import torch\nclass Model(torch.nn.Module):\n  def forward(self, x): return x.cuda() * 2\nx = torch.ones(4, requires_grad=True)\n",
}
NEEDS = {"docs/notebooks.md": "IPython"}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_VARIES = re.compile(
    r"~?[+-]?[\d,.]+ (?:us|ms|s)\b|[+-]?<?[\d.]+ %|~[\d.]+x|\((?:measured|datasheet) numbers\)|\b(?:launch|memory|compute)$"
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text()
    return [Block(m[1], m[2], text[: m.start()].count("\n") + 1) for m in _FENCE.finditer(text)]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block with the lines that it shows."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown.splitlines()


def masked(line: str) -> str:
    return " ".join(_VARIES.sub("#", line).split())


def check_output(shown: list[str], printed: str, where: str) -> None:
    """The lines shown come in this order; ``...`` within a line is anything, as a line it is any lines."""
    lines = iter([masked(line) for line in printed.splitlines()])
    for line in shown:
        if not line.strip() or line.strip() == "...":
            continue
        wanted = re.compile(re.escape(masked(line)).replace(r"\.\.\.", ".*"))
        assert any(wanted.fullmatch(found) for found in lines), f"{where}: no line {line!r} in\n{printed}"


def passes(_folder: Path) -> None:
    """The README's passes over attention, and a budget whose baseline is the second of them."""
    for model, name in (
        ("WrittenOut", "written_out"),
        ("FusedAttention", "fused"),
        ("OneProjection", "one_projection"),
    ):
        options = ["--no-grad", "--dtype", "bf16", "--quiet", "-o", f"{name}.json"]
        assert main([f"samples/attention_passes.py:{model}", *options]) == 0
    Path("optrace.toml").write_text(
        'launches = "baseline"\nhbm_bytes = "baseline + 5 %"\nsyncs = 0\nfindings = ["written-out-attention"]\n'
    )
    shutil.copy("fused.json", "step.json")
    assert main(["check", "step.json", "--update", "--quiet"]) == 0
    shutil.copy("written_out.json", "step.json")


SET_UP: dict[str, Callable[[Path], None]] = {"README.md": passes}


# As a reader runs them: torch's compilers warn of torch's own deprecated functions, and as errors that breaks them.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks(
    document: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    found = blocks(document)
    if document in NEEDS:
        pytest.importorskip(NEEDS[document], reason=f"{NEEDS[document]} is an extra")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "samples", "samples")
    shutil.copy("samples/toy_block.py", ".")
    if any(block.language in ("", "console") for block in found) and document in SET_UP:
        SET_UP[document](tmp_path)
    names: dict[str, Any] = {"__name__": "block"}
    exec(GIVEN.get(document, ""), names)
    for block in found:
        where = f"{document}:{block.line}"
        if (document, block.text.splitlines()[0]) in NOT_RUN:
            continue
        if block.language == "python":
            file = tmp_path / f"block_{block.line}.py"
            file.write_text(block.text)
            exec(compile(block.text, str(file), "exec"), names)
        elif block.language == "toml":
            tomllib.loads(block.text)
            Path("block.toml").write_text(block.text)
            assert read_budget(Path("block.toml")).limits
        elif block.language in ("", "console"):
            for command, shown in commands(block.text):
                program, *words = shlex.split(command)
                assert program == "optrace", where
                capsys.readouterr()
                code = main(words)
                printed, errors = capsys.readouterr()
                assert code == (1 if "over budget" in "\n".join(shown) else 0), (
                    f"{where}: {command}\n{errors}"
                )
                check_output(shown, printed, f"{where}: {command}")
        elif block.language != "text":
            pytest.fail(f"{where}: a block of {block.language!r} is neither run nor excused")
    for name, function in names.items():
        if name.startswith("test_"):
            function(
                **{given: request.getfixturevalue(given) for given in inspect.signature(function).parameters}
            )


def test_every_excuse_is_for_a_block() -> None:
    there = {(document, block.text.splitlines()[0]) for document in DOCUMENTS for block in blocks(document)}
    assert set(NOT_RUN) <= there
