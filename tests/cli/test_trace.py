"""``optrace model.py``, end to end on programs small enough to run with real values on the CPU."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys, torch
print("arguments", sys.argv[1:])
print("a warning of the program", file=sys.stderr)

class Net(torch.nn.Module):
    def forward(self, x):
        return x + x

def main():
    return Net()(torch.ones(4, 4, device="cuda"))
"""

NET = """
import torch
model = torch.nn.Linear(4, 3)
def get_inputs(batch=2): return (torch.ones(batch, 4),)
"""

MARKED = """
import optrace, torch
x = torch.ones(8)
for number in range(4):
    with optrace.step():
        for _ in range(number + 1):
            x = x * 2
"""

HALF_WAY = """
import torch
def main():
    x = torch.ones(4) * 2
    x = x + 1
    {stop}
"""


def graph(path: str = "graph.json") -> Any:
    return json.loads(Path(path).read_text())


MODE = b"mode fake: torch sees no GPU, nothing is computed; priced for NVIDIA H200 (measured numbers)\n"


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own, that sees no GPU."""
    return subprocess.run(
        [sys.executable, "-m", "optrace.cli", *words],
        capture_output=True,
        check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environment,
    )


def ops(path: str = "graph.json") -> list[str]:
    return [node["op"] for node in graph(path)["nodes"]]


@pytest.fixture(autouse=True)
def here(folder: Path) -> None:
    """In an empty folder."""


def test_it_prints_what_it_chose_the_verdict_the_scoreboard_and_the_top_ops(optrace, write) -> None:
    write(PROGRAM)
    ran = optrace("model.py", "--mode", "cpu", "--gpu", "NVIDIA A100-SXM4-80GB", "--top", "1")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[:3] == [
        "arguments []",
        "main() of model.py",
        "mode cpu; priced for NVIDIA A100-SXM4-80GB (datasheet numbers)",
    ]
    assert any("-bound: " in line for line in lines)
    for label in (
        "launches",
        "HBM traffic",
        "peak memory",
        "wall clock",
        "launch ceiling",
        "bandwidth ceiling",
    ):
        assert any(line.startswith(label) for line in lines), label
    top = lines.index(next(line for line in lines if line.startswith("top ops by share")))
    assert lines[top + 2].split()[0] in ("aten.ones.default", "aten.add.Tensor")
    assert lines[top + 3] == ""
    assert "All times (~) are predicted for NVIDIA A100-SXM4-80GB, rates not measured" in ran.out
    assert ran.err == "a warning of the program\n"


def test_plain_text_where_there_is_no_terminal(optrace, write) -> None:
    write(PROGRAM)
    out = optrace("model.py", "--mode", "cpu").out
    assert "\x1b" not in out
    assert out.isascii()
    assert all(line == line.rstrip() for line in out.splitlines())


def test_quiet_prints_nothing_of_ours(optrace, write) -> None:
    write(PROGRAM)
    ran = optrace("model.py", "--mode", "cpu", "--quiet", "-o", "graph.dot")
    assert (ran.code, ran.out, ran.err) == (0, "arguments []\n", "a warning of the program\n")
    assert Path("graph.dot").exists()


def test_files_are_written_by_suffix_and_words_after_two_dashes_are_the_programs(optrace, write) -> None:
    write(PROGRAM)
    ran = optrace("model.py", "--mode", "cpu", "--out", "graph.json", "-o", "graph.txt", "--", "--out", "-q")
    assert ran.code == 0
    assert "arguments ['--out', '-q']" in ran.out
    assert "wrote graph.json\nwrote graph.txt\n" in ran.out
    assert "%1 = aten.add.Tensor(%0, %0)" in Path("graph.txt").read_text()
    written = graph()
    assert written["program"] == "model.py:main"
    assert [edge["src"] for edge in written["edges"] if edge["dst"] == 1] == [0, 0]


def test_a_graph_is_priced_and_drawn_again(optrace, write) -> None:
    write(PROGRAM)
    first = optrace("model.py", "--mode", "cpu", "-o", "graph.json", "--launch-us", "7")
    again = optrace("graph.json", "-o", "again.json")
    assert again.code == 0
    assert "graph.json: model.py:main, recorded in cpu mode with torch" in again.out
    assert graph() == graph("again.json")
    assert again.out.splitlines()[3:-1] == first.out.splitlines()[4:-1]
    cheaper = optrace("graph.json", "--gpu", "l4", "--launch-us", "1", "-o", "l4.json")
    assert "priced for NVIDIA L4" in cheaper.out
    assert graph("l4.json")["totals"]["host_us"] < graph()["totals"]["host_us"]
    assert graph("l4.json")["totals"]["launches"] == graph()["totals"]["launches"]


def test_only_the_step_is_recorded_not_the_set_up(optrace, write) -> None:
    write(NET)
    ran = optrace("model.py", "--mode", "cpu", "-o", "graph.json")
    assert "model with get_inputs() of model.py: forward pass with gradients on" in ran.out
    assert ops() == ["aten.t.default", "aten.addmm.default"]


def test_training_records_one_warm_step(optrace, write) -> None:
    write(NET)
    assert optrace("model.py", "--mode", "cpu", "--train", "--optimizer", "sgd", "-o", "graph.json").code == 0
    phases = [node["phase"] for node in graph()["nodes"]]
    assert set(phases) >= {"forward", "backward", "optimizer"}
    forward = [op for op in ops() if op == "aten.addmm.default"]
    assert len(forward) == 1


def test_steps_and_batch(optrace, write) -> None:
    write(NET)
    ran = optrace("model.py", "--mode", "cpu", "--steps", "3", "--batch", "5", "-o", "graph.json")
    assert graph()["steps"] == 3
    assert ops().count("aten.addmm.default") == 3
    assert graph()["nodes"][1]["outputs"][0]["shape"] == [5, 3]
    assert any(line.startswith("a step ") and "(1 of 3 steps)" in line for line in ran.out.splitlines())


def test_a_script_marks_its_steps(optrace, write) -> None:
    write(MARKED)
    assert optrace("model.py", "--mode", "cpu", "-o", "graph.json").code == 0
    assert ops() == ["aten.mul.Tensor"]
    assert optrace("model.py", "--mode", "cpu", "--warmup", "1", "--steps", "2", "-o", "graph.json").code == 0
    assert ops() == ["aten.mul.Tensor"] * (2 + 3)
    assert graph()["steps"] == 2
    ran = optrace("model.py", "--mode", "cpu", "--warmup", "3", "--steps", "9", "-o", "graph.json")
    assert graph()["steps"] == 1
    assert "optrace: model.py took 4 steps: 1 of --steps 9 recorded" in ran.err


def test_a_script_without_marks_is_one_trace(optrace, write) -> None:
    write("import torch\nx = torch.ones(4)\nif __name__ == '__main__':\n  print((x * 2).sum() > 1)")
    ran = optrace("model.py", "--mode", "cpu", "--steps", "2", "-o", "graph.json")
    assert ran.code == 0
    assert "model.py as a script" in ran.out
    assert "optrace: no optrace.step() was passed" in ran.err
    assert ops()[:3] == ["aten.ones.default", "aten.mul.Tensor", "aten.sum.default"]
    assert graph()["steps"] == 1


@pytest.mark.parametrize(
    ("stop", "code", "said"),
    [
        ("raise ValueError('half way')", 1, "ValueError: half way"),
        ("raise SystemExit(4)", 1, "model.py ended with exit status 4"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_a_program_that_stops_half_way_leaves_a_partial_graph(
    optrace, write, stop: str, code: int, said: str
) -> None:
    write(HALF_WAY.format(stop=stop))
    ran = optrace("model.py", "--mode", "cpu", "-o", "graph.json", "-o", "graph.dot")
    assert ran.code == code
    assert said in ran.err
    assert "the record is incomplete: the run stopped with" in ran.err
    assert ops() == ["aten.ones.default", "aten.mul.Tensor", "aten.add.Tensor"]
    assert graph()["complete"] is False
    assert Path("graph.dot").exists()


def test_a_mode_is_named_when_it_was_chosen(optrace, write) -> None:
    write(PROGRAM)
    assert (
        "mode fake: torch sees no GPU" in optrace("model.py").out
        or "there is a GPU" in optrace("model.py").out
    )


def test_a_package_entry(optrace, folder: Path, write) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "part.py").write_text(PROGRAM)
    assert "main() of package.part" in optrace("package.part:main", "--mode", "cpu").out


@pytest.mark.parametrize(
    "program",
    [
        "async def main():\n    import torch\n    torch.ones(4) * 2",
        "def main():\n    import torch\n    yield torch.ones(4)\n    yield torch.ones(4) * 2",
    ],
)
def test_a_coroutine_is_awaited_and_a_generator_taken_to_its_end(optrace, write, program: str) -> None:
    write(program)
    assert optrace("model.py", "-o", "graph.json").code == 0
    assert ops()[-1] == "aten.mul.Tensor"


def test_a_program_may_change_the_folder_and_the_streams(optrace, write) -> None:
    write(
        """
        import io, os, sys, torch
        os.mkdir("inside")
        os.chdir("inside")
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        torch.ones(4) * 2
        """
    )
    ran = optrace("model.py", "-o", "graph.json")
    assert "wrote graph.json" in ran.out
    assert ops() == ["aten.ones.default", "aten.mul.Tensor"]


def test_a_program_may_close_the_standard_output(write) -> None:
    write("import sys, torch\ntorch.ones(4) * 2\nsys.stdout.close()")
    ran = command("model.py", "-o", "graph.json")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"model.py as a script\n" + MODE, b"")
    assert ops() == ["aten.ones.default", "aten.mul.Tensor"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows allows no such names")
def test_a_file_may_have_any_name(folder: Path) -> None:
    name = '<img src=x onerror=alert(1)> " $x {y} \u2603\n.py'
    (folder / name).write_text("import torch\ntorch.ones(4) * 2")
    suffixes = ("json", "dot", "svg", "html", "txt", "trace.json", "explorer.json", "graphml", "csv")
    ran = command(name, *(f"--out=graph.{suffix}" for suffix in suffixes), PYTHONIOENCODING="ascii")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b'<img src=x onerror=alert(1)> " $x {y} \\u2603\n.py as a script' in ran.stdout
    for suffix in ("svg", "html", "graphml"):
        assert b"<img src=x" not in Path(f"graph.{suffix}").read_bytes()
    assert graph()["program"] == name


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="these take no name that is not Unicode")
def test_a_file_name_that_is_no_text_is_one_clear_error(optrace, folder: Path) -> None:
    (folder / os.fsdecode(b"\xff.py")).write_text("import torch\ntorch.ones(4)")
    ran = optrace(os.fsdecode(b"\xff.py"), "-o", "graph.json")
    assert ran.code == 2
    assert "\\udcff.py': no record can hold this name, it is no UTF-8: rename it" in ran.err
    assert not Path("graph.json").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_written_to_and_not_replaced(optrace, write) -> None:
    write(PROGRAM)
    os.mkfifo("pipe.dot")
    with subprocess.Popen(["cat", "pipe.dot"], stdout=subprocess.PIPE) as reader:
        assert optrace("model.py", "-o", "pipe.dot").code == 0
        assert reader.communicate()[0].startswith(b"digraph")
    assert Path("pipe.dot").is_fifo()


def test_while_a_program_runs_no_collection_passes_over_what_was_imported(optrace, tmp_path) -> None:
    (tmp_path / "model.py").write_text(
        "import gc, torch\ndef main():\n    assert gc.get_freeze_count() > 10_000\n    torch.ones(2, device='cuda') + 1\n"
    )
    assert optrace(str(tmp_path / "model.py"), "--mode", "fake").code == 0
    assert gc.get_freeze_count() == 0


ON_THE_CPU = """
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4), nn.ReLU())
def get_inputs(): return (torch.ones(2, 3, 8, 8),)
"""


def test_a_program_that_leaves_the_gpu_alone_is_told_so(optrace, write) -> None:
    write(ON_THE_CPU)
    ran = optrace("model.py", "--mode", "fake", "--device", "cpu", "-o", "graph.json")
    assert ran.code == 0
    assert "no call launches anything on the GPU" in ran.out
    assert "speed-up" not in ran.out
    assert "wall clock" not in ran.out
    # A compiler leaves the CPU's calls to the CPU as well.
    assert [row["launches"] for row in graph()["cures"]["rows"]] == [0, 0, 0, 0]


def test_arithmetic_of_the_cpu_uses_nothing_of_the_gpu(optrace, write) -> None:
    write(ON_THE_CPU + "\ndef main():\n  model(*get_inputs())\n  torch.ones(2, device='cuda') + 1\n")
    ran = optrace("model.py:main", "--mode", "fake")
    assert "MFU 0 %" in ran.out


def test_what_torch_compile_would_compile_runs_as_it_is_written_and_that_is_told(write) -> None:
    write(
        "import torch\nmodel = torch.compile(torch.nn.Linear(4, 4))\ndef get_inputs(): return (torch.ones(2, 4),)"
    )
    ran = command("model.py", "-o", "graph.txt")
    assert ran.stderr == (
        b"optrace: torch.compile is set aside: what it would compile ran, and is priced, as eager code\n"
    )
    assert b"aten.addmm.default" in ran.stdout
    assert "torch.compile is set aside" in Path("graph.txt").read_text()
