"""Custom ops with no fake implementation, and Triton kernels: the trace goes on and says what it lacks."""

import sys
import types

import pytest
import torch

from optrace.tracing import open_session
from optrace.tracing.standin import NoFakeError, standin
from tests.standin.recording import names


@torch.library.custom_op("standin_test::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone()


@torch.library.custom_op("standin_test::opaque_pair", mutates_args=())
def opaque_pair(n: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.clone(), x.clone()


@torch.library.custom_op("standin_test::from_nothing", mutates_args=())
def from_nothing(n: int) -> torch.Tensor:
    return torch.zeros(n)


@torch.library.custom_op("standin_test::opaque_write", mutates_args=("x",))
def opaque_write(x: torch.Tensor) -> None:
    x.add_(1)


def test_the_trace_goes_on_with_results_like_the_first_tensor_marked_partial():
    with open_session("fake") as session:
        x = torch.randn(2, 3, device="cuda", dtype=torch.bfloat16)
        with session.recording():
            a, b = opaque_pair(3, x)
            y = opaque(a) + b
            opaque(y)
        assert [(t.shape, t.dtype, t.is_cuda) for t in (a, b, y)] == [((2, 3), torch.bfloat16, True)] * 3
    assert [node.op for node in session.graph] == [
        "standin_test.opaque_pair.default",
        "standin_test.opaque.default",
        "aten.add.Tensor",
        "standin_test.opaque.default",
    ]
    reasons = session.graph.info.incomplete
    assert len(reasons) == 3  # one an op and line
    for part in (
        "standin_test.opaque.default (",
        "test_opaque.py:",
        'register one with @torch.library.register_fake("standin_test::opaque")',
        "like its first tensor",
    ):
        assert part in reasons[1]


def test_real_values_tell_the_true_shapes():
    with standin(values="all") as gpu:
        y = opaque(torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda"))
        assert y.is_cuda
        assert y.tolist() == [[1, 2]]
        assert gpu.guesses == []


def test_an_op_that_returns_nothing_needs_no_shapes(gpu):
    x = torch.ones(2, device="cuda")
    assert names(gpu, lambda: opaque_write(x)) == ["standin_test.opaque_write"]
    assert gpu.guesses == []


def test_with_no_tensor_to_go_by_the_error_names_the_op_the_line_and_the_way_out(gpu):
    with pytest.raises(
        NoFakeError, match=r'test_opaque\.py:\d+.*register_fake\("standin_test::from_nothing"\)'
    ):
        from_nothing(3)


def launcher(name):
    """A kernel as Triton makes them: launched by `kernel[grid](...)`."""

    class JITFunction:
        __name__ = name

        def run(self, *args, grid, warmup, **kwargs):
            raise RuntimeError("0 active drivers")

        def __getitem__(self, grid):
            return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    return JITFunction


def test_a_triton_kernel_is_a_call_that_names_it(monkeypatch):
    jit = types.ModuleType("triton.runtime.jit")
    jit.JITFunction = launcher("add_kernel")
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", jit)
    kernel, run = jit.JITFunction(), jit.JITFunction.run
    with open_session("fake") as session:
        x, y = torch.randn(8, device="cuda"), torch.empty(8, device="cuda")
        with session.recording():
            kernel[(1,)](x, y, 8, BLOCK=16)
    (call,) = session.graph
    assert (call.op, call.args[0]) == ("optrace.triton_kernel.default", "add_kernel")
    assert call.writes == (True, True)
    assert jit.JITFunction.run is run
    with pytest.raises(RuntimeError, match="0 active drivers"):  # torch's own again
        kernel[(1,)](torch.zeros(2))


def test_triton_imported_during_the_trace(gpu):
    before = list(sys.meta_path)
    triton = pytest.importorskip("triton", reason="comes with the CUDA builds of torch")
    import triton.language as tl

    @triton.autotune([triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
    @triton.jit
    def double_kernel(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, at < n) * 2, at < n)

    x, y = torch.randn(8, device="cuda"), torch.empty(8, device="cuda")
    assert names(gpu, lambda: double_kernel[(1,)](x, y, 8)) == ["optrace.triton_kernel"]
    assert sys.meta_path == before
