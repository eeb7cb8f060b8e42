"""Files that are not what they are given as, and options that do not go together, command by command: exit code 2, one line
that says what failed and the way out, and every file in the folder as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from optrace.cli import main

from tests.cli.conftest import Command

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="--verify says what happens without a GPU")

RECORD = Path(__file__).parent.parent / "measuring" / "data" / "h200.jsonl.gz"

#: Files beside a good graph ``good.json`` of ``model.py:main`` and ``other.json`` of another program.
FILES: dict[str, str | bytes] = {
    "empty.json": "",
    "cut.json": '{"format": "optrace", "calls": [',
    "list.json": "[1, 2]",
    "foreign.json": '{"format": "netron"}',
    "binary.json": b"\x00\xff\xfe",
    "model.py": "import torch\ndef main(): return torch.ones(3, 3, device='cuda').relu()\n",
    "broken.toml": "launches = = 3",
    "binary.toml": b"launches = '\xff'",
    "empty.toml": "",
    "unknown.toml": "launch = 3",
    "negative.toml": "launches = -3",
    "text.toml": "hbm_bytes = '5 parsecs'",
    "plus.toml": "launches = 'baseline + many'",
    "kind.toml": "findings = ['synk']",
    "count.toml": "findings = { sync = -1 }",
    "list.toml": "launches = [3]",
    "tolerance.toml": "tolerance = -0.1\nlaunches = 3",
    "modules.toml": "modules = 3",
    "inside.toml": "[modules.'Net.*']\nlaunchs = 3",
    "program.toml": "[programs.'train.py']\nlaunches = 3",
    "stored.toml": "baseline = 'cut.json'\nlaunches = 'baseline'",
    "elsewhere.toml": "baseline = 'list.json'\nlaunches = 'baseline'",
    "absent.toml": "baseline = 'absent.json'\nlaunches = 'baseline'",
    "ok.toml": "launches = 30",
    "pyproject.toml": "[tool.ruff]\nline-length = 99\n",
    "record.jsonl": '{"machine": ',
    "cures.jsonl": '{"name": "m", "eager_us": "long"}\n',
    "no_cures.jsonl": "\n",
}


#: Command lines, and what each says.
ROWS: dict[str, str] = {
    # optrace diff
    "diff good.json empty.json": "cannot read empty.json: not a JSON object (Input data was truncated)",
    "diff cut.json good.json": "cannot read cut.json: not a JSON object (Input data was truncated)",
    "diff good.json list.json": "cannot read list.json: not a JSON object (Expected `object`, got `array`)",
    "diff good.json foreign.json": 'cannot read foreign.json: no optrace graph (its "format" is not "optrace.graph")',
    "diff good.json binary.json": "cannot read binary.json: not a JSON object (JSON is malformed: invalid character (byte 0))",
    "diff good.json folder": "cannot read folder: Is a directory",
    "diff good.json other.json": "these are runs of two programs, model.py:main and other.py:main: 0 of 2 launching calls have the same module, op and shapes in both; compare runs of one program, at the same sizes",
    "diff good.json again.json -o folder.svg": "cannot write folder.svg: it is a folder",
    "diff good.json again.json -o nowhere/x.json": "cannot write nowhere/x.json: there is no folder ",
    "diff good.json again.json --title a --title b --title c": "--title was given 3 times for 2 files: give one a file, or none",
    "diff good.json again.json --top -1": "Invalid value for '--top': Input should be greater than or equal to 0 (see optrace diff --help)",
    "diff good.json": "Missing argument 'B.json' (see optrace diff --help)",
    # optrace scoreboard
    "scoreboard good.json empty.json": "cannot read empty.json: not a JSON object (Input data was truncated)",
    "scoreboard list.json": "cannot read list.json: not a JSON object (Expected `object`, got `array`)",
    "scoreboard good.json nowhere.json": "cannot read nowhere.json: No such file or directory",
    "scoreboard good.json again.json --title one": "--title was given 1 times for 2 files: give one a file, or none",
    "scoreboard good.json --gpu h1000": "no GPU profile fits 'h1000' (one of a100-40gb, ",
    # optrace check and its budget
    "check good.json": "pyproject.toml has no [tool.optrace]: put the limits there, or into an optrace.toml",
    "check good.json --budget nowhere.toml": "cannot read nowhere.toml: No such file or directory",
    "check good.json --budget folder": "cannot read folder: Is a directory",
    "check good.json --budget broken.toml": "cannot read broken.toml: Invalid value",
    "check good.json --budget binary.toml": "cannot read binary.toml: 'utf-8' codec can't decode byte 0xff",
    "check good.json --budget empty.toml": "empty.toml sets no limit for good.json (it has limits for no program)",
    "check good.json --budget unknown.toml": "unknown.toml: unknown key launch (one of baseline, tolerance, launches, hbm_bytes, peak_bytes, flops, syncs, host_us, device_us, wall_us, findings, modules, programs)",
    "check good.json --budget negative.toml": 'negative.toml: launches = -3: expected a number, "baseline" or "baseline + 5 %"',
    "check good.json --budget text.toml": 'text.toml: hbm_bytes = \'5 parsecs\': expected a number, a number with a unit (B, kB, MB, GB, TB, KiB, MiB, GiB, TiB), "baseline" or "baseline + 5 %"',
    "check good.json --budget plus.toml": 'plus.toml: launches = \'baseline + many\': expected a number, "baseline" or "baseline + 5 %"',
    "check good.json --budget kind.toml": "kind.toml: findings: unknown kind 'synk' (one of blocking-copy, ",
    "check good.json --budget count.toml": 'count.toml: findings.sync = -1: expected a number, "baseline" or "baseline + 5 %"',
    "check good.json --budget list.toml": 'list.toml: launches = [3]: expected a number, "baseline" or "baseline + 5 %"',
    "check good.json --budget tolerance.toml": "tolerance.toml: tolerance = -0.1: expected a share over the baseline that passes, such as 0.02",
    "check good.json --budget modules.toml": 'modules.toml: modules = 3: expected tables of limits, such as [modules."name"]',
    "check good.json --budget inside.toml": 'inside.toml: unknown key modules."Net.*".launchs (one of launches, hbm_bytes, peak_bytes, flops, syncs, host_us, device_us, wall_us, findings)',
    "check good.json --budget program.toml": "program.toml sets no limit for good.json (it has limits for train.py)",
    "check good.json --budget stored.toml": "cannot read cut.json: Input data was truncated; remove it, then store it anew with --update",
    "check good.json --budget elsewhere.toml": "cannot read list.json: Expected `object`, got `array`; remove it, then store it anew with --update",
    "check good.json --budget absent.toml": "absent.json is not there to hold the baseline of good.json for launches: store it with optrace check good.json --update",
    "check good.json --budget ok.toml --junit folder": "cannot write folder: it is a folder",
    "check good.json --budget ok.toml --train": "--train is about running a program, and good.json is a recorded graph",
    "check cut.json --budget ok.toml": "cannot read cut.json: not a JSON object (Input data was truncated)",
    "check nowhere.py --budget ok.toml": "no such file: nowhere.py",
    # --findings, --verify, --save-cures
    "empty.json --findings": "cannot read empty.json: not a JSON object (Input data was truncated)",
    "cut.json --findings": "cannot read cut.json: not a JSON object (Input data was truncated)",
    "good.json --findings --top -1": "Invalid value for '--top': Input should be greater than or equal to 0 (see optrace --help)",
    "good.json --findings -o findings.gif": "cannot write findings.gif: no renderer for '.gif' (one of .csv, ",
    "good.json --findings --train": "--train is about running a program, and good.json is a recorded graph",
    "nowhere.py --findings": "no such file: nowhere.py",
    "good.json --verify": "--verify runs the program, and good.json is a recorded graph",
    "model.py --mode fake --verify": "--verify measures the cures on a CUDA GPU, and this machine has none: leave it out",
    "model.py --mode fake --save-cures new.jsonl": "--save-cures new.jsonl keeps what --verify measures: add --verify",
    # optrace accuracy --cures
    "accuracy record.jsonl --cures cures.jsonl": "record.jsonl, line 1: no machine of a record",
    "accuracy h200.jsonl.gz --cures nowhere.jsonl": "cannot read nowhere.jsonl: No such file or directory",
    "accuracy h200.jsonl.gz --cures cures.jsonl": "cures.jsonl, line 1: no measured cure",
    "accuracy h200.jsonl.gz --cures no_cures.jsonl": "no_cures.jsonl: no measured cure in it",
    "accuracy h200.jsonl.gz --cures folder": "cannot read folder: Is a directory",
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All the files, and the graphs."""
    made = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        for name, text in FILES.items():
            Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        Path("other.py").write_text("import torch\ndef main(): return torch.ones(2, device='cuda').cos()\n")
        for program, graph in (("model.py", "good.json"), ("other.py", "other.json")):
            assert main([program, "--mode", "fake", "-q", "-o", graph]) == 0
        shutil.copy("good.json", "again.json")
        shutil.copy(RECORD, made)
        for folder in ("folder", "folder.svg"):
            Path(folder).mkdir()
    return made


@pytest.mark.parametrize("line", ROWS)
def test_exit_code_2_one_sentence_and_no_file_touched(
    optrace: Command, recorded: Path, folder: Path, line: str
) -> None:
    shutil.copytree(recorded, folder, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ran = optrace(*line.split(" "))
    assert ran.code == 2
    assert ran.err.startswith(f"optrace: {ROWS[line]}")
    assert ran.err.count("\n") == 1
    assert not ran.out
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
