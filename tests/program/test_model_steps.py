"""The step that optrace builds around a model and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch

from optrace.program import DTYPES, OPTIMIZERS, Options, ProgramError, find_program

#: Says on each call what it is given and how it is run.
PROBE = """
import torch
from torch import nn

calls = []

class Model(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.linear = nn.Linear(width, 3)

    def forward(self, x, ids=None):
        y = self.linear(x)
        calls.append((tuple(x.shape), x.dtype, y.dtype, y.requires_grad, self.training, None if ids is None else ids.dtype))
        return {output}

model = Model()
"""


class Recorder:
    device = "cpu"

    def place(self, value: Any) -> Any:
        return value

    @contextmanager
    def recording(self, *, warmup: int = 0, steps: int = 1) -> Iterator[None]:
        yield

    def begin_run(self) -> None:
        pass


Run = Callable[..., list[Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the probe with more source after it; its calls."""

    def run(more: str, output: str = "y", **options: Any) -> list[Any]:
        path = tmp_path / "probe.py"
        path.write_text(PROBE.replace("{output}", output) + dedent(more))
        with find_program(f"{path}:model", Options(**options)) as program:
            program.run(Recorder())
            import probe

            return list(probe.calls)

    return run


INPUTS = "inputs = torch.ones(4, 2)"


@pytest.mark.parametrize(
    "more",
    [
        "inputs = torch.ones(4, 2)",
        "inputs = (torch.ones(4, 2),)",
        "inputs = [torch.ones(4, 2)]",
        "inputs = {'x': torch.ones(4, 2)}",
        "from collections import UserDict\nexample_inputs = UserDict(x=torch.ones(4, 2))",
        "def get_inputs(): return torch.ones(4, 2)",
        "def get_inputs(batch=4): return [torch.ones(batch, 2)]",
    ],
)
def test_inputs_come_in_several_forms(run: Run, more: str) -> None:
    assert run(more) == [((4, 2), torch.float32, torch.float32, True, True, None)]


def test_batch_goes_to_get_inputs(run: Run) -> None:
    assert run("def get_inputs(batch=4): return torch.ones(batch, 2)", batch=7)[0][0] == (7, 2)


def test_dtype_converts_weights_and_floating_inputs(run: Run) -> None:
    inputs = "inputs = {'x': torch.ones(4, 2), 'ids': torch.ones(1, dtype=torch.long)}"
    assert run(inputs, dtype="bf16") == [((4, 2), torch.bfloat16, torch.bfloat16, True, True, torch.long)]


def test_autocast_keeps_weights_and_inputs(run: Run) -> None:
    assert run(INPUTS, autocast=True) == [((4, 2), torch.float32, torch.bfloat16, True, True, None)]
    assert run(INPUTS, autocast=True, dtype="fp16")[0][2] is torch.float16


def test_no_grad(run: Run) -> None:
    assert run(INPUTS, no_grad=True)[0][3] is False


def test_a_model_that_the_file_put_in_eval_stays_there(run: Run) -> None:
    assert run(INPUTS + "\nmodel.eval()")[0][4] is False
    assert run(INPUTS + "\nmodel.eval()", train=True)[0][4] is True


def test_training_warms_up_once_unless_told_otherwise(run: Run) -> None:
    assert len(run(INPUTS)) == 1
    assert len(run(INPUTS, train=True)) == 2
    assert len(run(INPUTS, train=True, warmup=0, steps=3)) == 3


@pytest.mark.parametrize(
    ("output", "slope"),
    [
        ("y", 1 / 12),  # the mean of 4 x 3 elements
        ("(y, [y * 2], x)", 1 / 12 + 2 / 12),  # x needs no gradient
        ("{'y': y, 'n': 3}", 1 / 12),
        ("{'loss': y.sum(), 'y': y}", 1.0),
        ("type('Output', (), {'loss': y.sum(), 'y': y})()", 1.0),
        ("type('Output', (dict,), {'loss': None})(y=y)", 1 / 12),
    ],
)
def test_the_loss_is_the_models_own_or_a_mean(run: Run, tmp_path: Path, output: str, slope: float) -> None:
    """SGD with rate 1e-3 on y = W x + b, x = 1: every weight falls by 4 x slope x rate."""
    more = INPUTS + "\nnn.init.zeros_(model.linear.weight)\nnn.init.zeros_(model.linear.bias)"
    path = tmp_path / "loss.py"
    path.write_text(PROBE.replace("{output}", output) + more)
    with find_program(f"{path}:model", Options(train=True, optimizer="sgd", warmup=0)) as program:
        program.run(Recorder())
        import loss

        torch.testing.assert_close(loss.model.linear.weight, torch.full((3, 2), -4 * slope * 1e-3))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_takes_a_step(run: Run, name: str) -> None:
    assert len(run(INPUTS, train=True, optimizer=name)) == 2


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_one_of_torch(name: str) -> None:
    assert DTYPES[name].is_floating_point


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        (
            INPUTS,
            {"optimizer": "lion", "train": True},
            r"unknown optimizer 'lion' \(one of adadelta, .*sgd\)",
        ),
        (INPUTS, {"optimizer": "sgd"}, "--optimizer sgd needs --train"),
        (INPUTS, {"dtype": "int4"}, r"unknown dtype 'int4' \(one of bfloat16, bf16"),
        (INPUTS, {"steps": 0}, "--steps 0: at least 1"),
        (INPUTS, {"warmup": -1}, "--warmup -1: at least 0"),
        (INPUTS, {"batch": 0}, "--batch 0: at least 1"),
        (INPUTS, {"batch": 2}, r"--batch 2: inputs is fixed; define get_inputs\(batch=\.\.\.\)"),
        ("def get_inputs(): pass", {"batch": 2}, r"--batch 2: get_inputs\(\) takes no batch="),
        (INPUTS, {"train": True, "no_grad": True}, "--train needs gradients"),
        ("inputs = torch.ones(4)\nmodel = nn.ReLU()", {"train": True}, "no parameters to train"),
        ("inputs = 1\ndef model(x): pass", {"train": True}, "no parameters to train"),
        (INPUTS + "\nModel.forward = lambda self, x: 3", {"train": True}, r"no tensor of the output \(int\)"),
        (
            "inputs = 1\ndef model(): return 3",
            {},
            r"model\(\) of probe\.py made a int, which cannot be called",
        ),
    ],
)
def test_what_cannot_be_run_is_an_error(run: Run, more: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        run(more, **options)


@pytest.mark.parametrize("source", ["def main(): pass", "pass"])
@pytest.mark.parametrize(
    "options", [{"train": True}, {"dtype": "bf16"}, {"autocast": True}, {"no_grad": True}, {"batch": 2}]
)
def test_options_of_a_model_need_a_model(tmp_path: Path, source: str, options: dict[str, Any]) -> None:
    path = tmp_path / "plain.py"
    path.write_text(source)
    option = next(iter(options)).replace("_", "-")
    with (
        pytest.raises(ProgramError, match=rf"--{option} needs a model and its inputs, and .*plain\.py"),
        find_program(str(path), Options(**options)),
    ):
        pass


def test_the_description_says_how_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(PROBE.replace("{output}", "y") + "def get_inputs(batch=1): return torch.ones(batch, 2)")
    rows = [
        ({}, "Model() with get_inputs() of net.py: forward pass with gradients on"),
        ({"no_grad": True, "dtype": "bf16", "batch": 8}, "forward pass under no_grad, bf16, batch 8"),
        ({"train": True, "autocast": True}, "training step with adamw, autocast to bfloat16"),
    ]
    for options, wanted in rows:
        with find_program(str(path), Options(**options)) as program:
            assert program.describe.endswith(wanted)
