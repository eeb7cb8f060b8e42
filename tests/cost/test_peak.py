"""What is alive at the peak of memory: by hand, and in a training step through the tracer."""

import pytest
import torch
from torch import nn

import optrace
from optrace.cost.memory import memory_use
from optrace.cost.peak import Holding, peak_of
from optrace.cost.workspaces import HOPPER_BYTES, LT_BYTES, OTHER_BYTES, library_workspaces
from tests.cost.calls import TARGET, T

MB = 1 << 20


def block(nbytes):
    return -(-nbytes // 512) * 512


def test_shares_are_by_use_and_add_up_to_the_peak(maker):
    x, w, kept, loose = T(1024, 1024), T(1024, 1024), T(1024, 1024), T(1024, 1024)
    maker("aten.mul.Tensor", x, w, out=kept)
    maker("aten.relu.default", kept, out=loose)
    graph = maker.graph
    numbers = [graph.tensor_storage(graph.operands(0)[place]) for place in (0, 1)]
    graph.set_storage(numbers[1], kind="parameter", name="w")
    memory = memory_use(graph.columns(), [(), (2 * MB,)], library=(12 * MB,))
    peak = peak_of(graph, memory)
    # 4 MiB each; the workspace is the library's block and the call's own temporary.
    assert peak.shares == {
        "parameters": 4 * MB,
        "inputs": 4 * MB,
        "temporaries": 4 * MB + 4 * MB,
        "workspace": 12 * MB + 2 * MB,
    }
    assert sum(peak.shares.values()) == memory.peak == 30 * MB
    assert (memory.base, memory.library) == (4 * MB + 4 * MB + 12 * MB, 12 * MB)
    assert peak.holdings[-1] == Holding(
        graph.tensor_storage(graph.outputs(1)[0]), 4 * MB, "temporaries", 1, None
    )


def test_a_storage_freed_before_the_peak_is_not_in_it(maker):
    x, a, b, c = T(1024), T(256, 1024), T(512, 1024), T(1024, 1024)
    for source, result in ((x, a), (a, b), (b, c)):
        maker("aten.relu.default", source, out=result)
    graph = maker.graph
    gone, at_it = (graph.tensor_storage(graph.outputs(call)[0]) for call in (0, 1))
    graph.add_free(gone, 1)
    graph.add_free(at_it, 2)
    peak = peak_of(graph, memory_use(graph.columns(), [(), (), ()]))
    # What is freed after the call at the peak is alive in it.
    assert [held.nbytes for held in peak.holdings] == [4 * MB, 2 * MB, 4 * 1024]


def test_a_training_step_by_hand():
    """SGD with momentum on Linear(512, 1024), ReLU, Linear(1024, 256), no biases, 2048 rows of float32; its second
    step. Most is alive when ReLU's backward has made its gradient."""
    with optrace.trace(gpu="h200", mode="fake") as t:
        model = t.place(
            nn.Sequential(nn.Linear(512, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 256, bias=False))
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = torch.randn(2048, 512, device="cuda")
        model(x).square().mean().backward()
        optimizer.step()
        with optrace.step():
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    report = t.report()
    memory, peak = report.priced.memory, report.peak
    weights = 4 * 1024 * 512 + 4 * 256 * 1024
    scalar = 512  # the loss, which backward() takes the shape from, and the gradient that it starts with
    assert report.graph.facts(memory.peak_call).label == "threshold_backward"
    assert peak.shares == {
        "parameters": weights,
        "gradients": 4 * 256 * 1024,  # the second layer's
        "optimizer state": weights,
        "inputs": 4 * 2048 * 512,
        "activations": 4 * 2048 * 1024 + scalar,  # ReLU's result, which the second layer keeps too
        "temporaries": 2 * 4 * 2048 * 1024 + scalar,  # the gradients of ReLU's result and of its input
        "workspace": 2 * HOPPER_BYTES,  # cuBLAS in the forward's and in the backward's thread
    }
    assert sum(peak.shares.values()) == memory.peak
    assert memory.reserved >= memory.peak
    assert report.fits


@pytest.mark.parametrize(
    ("calls", "phases", "capability", "blocks"),
    [
        # A product in the forward pass: one handle.
        (["mm"], ["forward"], (9, 0), (HOPPER_BYTES,)),
        # A fused bias besides: cuBLASLt's own.
        (["mm", "addmm"], ["forward", "forward"], (9, 0), (HOPPER_BYTES, LT_BYTES)),
        # The backward pass runs in another thread, with a handle of its own.
        (["addmm", "mm"], ["forward", "backward"], (9, 0), (HOPPER_BYTES, LT_BYTES, HOPPER_BYTES)),
        (["mm"], ["forward"], (8, 0), (OTHER_BYTES,)),
        (["relu"], ["forward"], (9, 0), ()),
    ],
)
def test_workspaces_of_libraries(maker, calls, phases, capability, blocks):
    from dataclasses import replace

    a, b = T(64, 64), T(64, 64)
    for name, phase in zip(calls, phases, strict=True):
        operands = {"mm": (a, b), "addmm": (T(64), a, b), "relu": (a,)}[name]
        maker(f"aten.{name}.default", *operands, out=T(64, 64))
        maker.graph._phase[-1] = ("forward", "backward", "optimizer", "other").index(phase)
    assert (
        library_workspaces(maker.graph, maker.graph.columns(), replace(TARGET, capability=capability))
        == blocks
    )


def test_the_workspaces_of_a_recorded_process():
    """A GPU with 79,075,328 bytes allocated before a step of a three-layer perceptron (784-512-512-10, batch 64,
    AdamW): 8,238,592 in tensors that the step's calls use, 2,679,296 in gradients of the step before."""
    handles = HOPPER_BYTES + LT_BYTES + HOPPER_BYTES
    gradients = 4 * sum(-(-numel // 128) * 128 for numel in (784 * 512, 512, 512 * 512, 512, 512 * 10, 10))
    assert handles + gradients == 70_836_736
    assert 79_075_328 - 70_836_736 == 8_238_592


def test_products_on_the_host_take_no_workspace(maker):
    a = T(64, 64, device="cpu")
    maker("aten.mm.default", a, a, out=T(64, 64, device="cpu"))
    assert library_workspaces(maker.graph, maker.graph.columns(), TARGET) == ()
