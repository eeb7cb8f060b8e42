from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rendering.by_hand import HandGraph

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files of tests/rendering anew"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``golden/<name>``, or write it there with ``--update-golden``."""

    def check(name: str, text: str) -> None:
        file = GOLDEN / name
        if request.config.getoption("update_golden", default=False):
            file.write_text(text)
        assert text == file.read_text(), (
            f"{name} differs; after review: pytest tests/rendering --update-golden"
        )

    return check


@pytest.fixture
def toy() -> HandGraph:
    """A block and its optimizer step in eight calls, with a view, an in-place write, a wait for the GPU and
    an op that nobody has priced."""
    hand = HandGraph("toy.py")
    x = hand.tensor((8, 64), name="x")
    w = hand.tensor((64, 64), name="Block.fc.weight", kind="parameter")
    h, y, z, loss = (hand.tensor(shape) for shape in ((8, 64), (8, 64), (8, 64), ()))
    wt = hand.tensor((64, 64), like=w, stride=(1, 64))
    fc = {"module": "Block.fc", "cls": "Linear"}
    block = {"module": "Block", "cls": "Block"}
    hand.call("aten.t.default", [w], [wt], line=4, view=True, kernels=0, device_us=0.0, **fc)
    hand.call(
        "aten.mm.default", [x, wt], [h], line=4, device_us=12.0, roof="compute", read=18432, written=2048,
        flops=65536, matmul_flops=65536, **fc,
    )  # fmt: skip
    hand.call(
        "aten.gelu.default", [h], [y], line=5, device_us=2.0, read=2048, written=2048, flops=512, **block
    )
    hand.call("aten.add.Tensor", [y, y], [z], line=6, alpha=1, device_us=2.0, read=2048, written=2048, flops=512, **block)  # fmt: skip
    hand.call(
        "vendor.norm.default", [z], [loss], line=7, kernels=None, device_us=None, flops=None, source="unknown"
    )
    hand.call("aten._local_scalar_dense.default", [loss], [], line=8, kernels=0, memcpys=1, device_us=1.0, host_wait=True)  # fmt: skip
    hand.call("aten.mul_.Tensor", [w], [], writes=[w], line=9, phase="optimizer", device_us=1.5, read=16384, written=16384, flops=4096)  # fmt: skip
    hand.call("aten.mul_.Tensor", [w], [], writes=[w], line=9, phase="optimizer", device_us=1.5, read=16384, written=16384, flops=4096)  # fmt: skip
    return hand
