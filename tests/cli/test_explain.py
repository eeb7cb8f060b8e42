"""``optrace explain``, and that what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import optrace as package

ROOT = Path(package.__file__).parent.parent


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("aten.sum", ["sum.dim_IntList(Tensor self", "rule reduces_in_the_result_dtype", "rules/reductions.py:", "device/reductions.py:"]),
        ("aten.mm.default", ["aten.mm.default", "rule multiplies", "device/products.py:"]),
        ("relu", ["pointwise op", "rules/table.py:", "device/streams.py:", "vectorized"]),
        ("aten::t", ["a view: launches nothing", "dispatched as view"]),
        ("torch.linear", ["none of its own: torch takes it apart", "linear.default(f32[1024, 1024], f32[1024, 1024]) makes aten.t.default, aten.mm.default"]),
        ("aten.native_layer_norm", ["rule ", "dispatched as normalization"]),
        ("aten.sum", ["sum.dim_IntList(f32[1024, 1024], [1]) on NVIDIA H200", "1 launch, 4.2 MB of tensors, 1.05 MFLOP", "timed as reduce_rows"]),
        ("sort", ["5 launches", " x3, timed as sort"]),
        ("convolution", ["convolution.default(f32[8, 64, 32, 32], f32[64, 64, 3, 3], None,", "timed as conv"]),
        ("clamp", ["clamp.default(f32[1024, 1024], 2.0, 2.0)"]),
        ("aten.index_put_", ["none: its schema does not say what a call of it looks like"]),
    ],
)  # fmt: skip
def test_it_names_the_rule_and_its_file(optrace, op: str, said: list[str]) -> None:
    ran = optrace("explain", op)
    assert ran.code == 0
    for text in said:
        assert text in ran.out
    for file, line in re.findall(r"(optrace/[\w/]+\.py):(\d+)", ran.out):
        assert (ROOT / file).read_text().splitlines()[int(line) - 1].startswith(("def ", "@"))


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("aten.nope", "torch has no op 'aten.nope'"),
        ("aten.addm", "did you mean aten.addm"),
        ("aten.sum.nope", "aten.sum has no overload 'nope' (one of "),
    ],
)
def test_an_op_that_is_none(optrace, op: str, said: str) -> None:
    ran = optrace("explain", op)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
