"""Recurrent nets of cuDNN: counts on paper, and a model against 247 shapes profiled on an H200.

``data/cudnn_rnn.json``, a row a shape: the arguments of ``Network``; kernels, copies and memsets of the forward call
(less those that make the user's own zero states, copy a ``batch_first`` input and flatten bfloat16 weights) and its
workspace in bytes; then, where it was trained, both of the backward call. torch 2.11, cuDNN 9.19.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from optrace.cost.rules import work_of
from optrace.cost.rules.cudnn_rnn import GRU, LSTM, RNN_TANH, Launches, Network
from tests.cost.calls import TARGET, T

ROWS = json.loads((Path(__file__).parent / "data" / "cudnn_rnn.json").read_text())["rows"]


def network(mode=LSTM, steps=64, batch=32, layers=2, directions=1, dtype="float32", hidden=512, **more):
    itemsize = 4 if dtype == "float32" else 2
    return Network(mode, steps, batch, 256, hidden, layers, directions, dtype, itemsize, **more)


@pytest.mark.parametrize(
    ("net", "launches"),
    [
        # A GEMM and a cell a step and layer; the inputs in 4 chunks of 16 steps.
        (network(), Launches(2 * 64 * 2 + 4 * 2)),
        # 7 steps cannot be cut into 4: chunks of one.
        (network(steps=7), Launches(2 * 7 * 2 + 7 * 2)),
        # 33 // 4 = 8 steps a chunk leave one over.
        (network(steps=33), Launches(2 * 33 * 2 + 5 * 2)),
        # One layer, or two directions: all inputs at once.
        (network(layers=1), Launches(2 * 64 + 1)),
        (network(directions=2), Launches(2 * 64 * 4 + 4)),
        # Dropout: a mask, used a chunk.
        (network(drops=True), Launches(2 * 64 * 2 + 4 * 2 + 1 + 4)),
        # Few hidden units: one kernel for all steps of a layer.
        (network(hidden=128), Launches(2 * 2)),
        (network(mode=GRU, hidden=128), Launches(3 * 2)),
        (network(dtype="float16", layers=1), Launches(3)),
        (network(dtype="float16", layers=1, mode=RNN_TANH), Launches(4)),
        # Sequences of different lengths never take those.
        (network(hidden=128, packed=True), Launches(2 * 64 * 2 + 4 * 2)),
    ],
)
def test_forward(net, launches):
    assert net.forward(TARGET) == launches


@pytest.mark.parametrize(
    ("net", "launches"),
    [
        # Data: a GEMM and a cell a step and layer, 16 chunks of 4 steps; weights: 3 GEMMs and the biases a layer.
        # In TF32 each of these GEMMs of a gated net zeroes a counter first.
        (network(), Launches(2 * 64 * 2 + 16 * 2 + 4 * 2, 0, 64 * 2 + 16 * 2 + 1)),
        (network(dtype="bfloat16"), Launches(2 * 64 * 2 + 16 * 2 + 4 * 2)),
        (network(layers=1, dtype="bfloat16"), Launches(2 * 64 + 1 + 4)),
        # Both directions: their gradients are added up, a layer; last states are copied.
        (network(directions=2, dtype="bfloat16"), Launches(2 * 64 * 4 + 4 + 4 * 4 + 2, 2 * 2)),
        # One step: no product with the states of other steps.
        (network(steps=1, dtype="bfloat16"), Launches(2 * 2 + 2 + 3 * 2)),
    ],
)
def test_backward(net, launches):
    assert net.backward(TARGET) == launches


def errors(model, measured):
    return np.array(
        [abs(model(Network(*row[0])) - measured(row)) / measured(row) for row in ROWS if measured(row)]
    )


@pytest.mark.parametrize(
    ("place", "exact", "p90"), [(1, 0.86, 0.01), (3, 0.40, 0.05)], ids=["forward", "backward"]
)
def test_launches_against_the_profiled_shapes(place, exact, p90):
    found = errors(
        lambda net: sum_of((net.forward if place == 1 else net.backward)(TARGET)),
        lambda row: sum(row[place]) if len(row) > place else 0,
    )
    assert len(found) == (247 if place == 1 else 213)
    assert np.mean(found == 0) >= exact
    assert np.median(found) <= 0.003
    assert np.percentile(found, 90) <= p90


@pytest.mark.parametrize("place", [2, 4], ids=["forward", "backward"])
def test_workspace_against_the_profiled_shapes(place):
    found = errors(
        lambda net: net.workspace_bytes(TARGET, forward=place == 2),
        lambda row: row[place] if len(row) > place else 0,
    )
    assert np.median(found) <= 0.025
    assert np.percentile(found, 90) <= 0.08


def sum_of(launches):
    return launches.kernels + launches.memcpys + launches.memsets


def call(maker, backward, **more):
    """The LSTM of a language model in training: 2 layers, 256 to 512, 64 steps of 32 sequences, batch first."""
    matrices = [T(2048, 256), T(2048, 512), T(2048), T(2048), T(2048, 512), T(2048, 512), T(2048), T(2048)]
    x, state, buffer = T(32, 64, 256), T(2, 32, 512), T(3678208)
    out = T(32, 64, 512, stride=(512, 16384, 1))
    reserve, dropout = T(46268672, dtype="uint8"), T(6488064, dtype="uint8")
    if not backward:
        return maker(
            "aten._cudnn_rnn.default", x, matrices, 4, buffer, state, T(2, 32, 512), 2, 512, 0, 2, True, 0.1, True,
            False, [], dropout, out=(out, T(2, 32, 512), T(2, 32, 512), reserve, buffer),
        )  # fmt: skip
    return maker(
        "aten._cudnn_rnn_backward.default", x, matrices, 4, buffer, state, T(2, 32, 512), out, T(32, 64, 512), None,
        None, 2, 512, 0, 2, True, 0.1, True, False, [], dropout, reserve, [True, False, False, True],
        out=(T(32, 64, 256), T(2, 32, 512), T(2, 32, 512), matrices),
    )  # fmt: skip


def test_a_recorded_call_and_its_backward(maker, target):
    """``lstm_train`` of the record: 270 kernels; 319 kernels and 161 memsets. Each multiply-add twice backward."""
    rows, weights = 32 * 64, 2048 * (256 + 512 + 512 + 512)
    forward = work_of(call(maker, backward=False), target)
    assert (forward.kernels, forward.memcpys, forward.memsets) == (270, 0, 0)
    assert forward.kernels == 2 * 64 * 2 + 4 * 2 + (1 + 4) + 1  # and the copy of the input
    assert forward.matmul_flops == 2 * rows * weights
    assert forward.flops == forward.matmul_flops + 21 * 512 * 2 * rows
    backward = work_of(call(maker, backward=True), target)
    assert (backward.kernels, backward.memcpys, backward.memsets) == (319, 0, 161)
    # Dropout as forward, 16 chunks; copies of the gradient and twice of the input; zeros for both last states and for
    # the weights' buffer.
    assert backward.kernels == 2 * 64 * 2 + 16 * 2 + 4 * 2 + (1 + 16) + 3 + 3
    assert backward.matmul_flops == 2 * forward.matmul_flops
    assert backward.flops == 2 * forward.flops


def test_weights_in_no_buffer_are_copied_into_one(maker, target):
    weights = [
        T(64, 8, dtype="bfloat16"),
        T(64, 16, dtype="bfloat16"),
        T(64, dtype="bfloat16"),
        T(64, dtype="bfloat16"),
    ]
    half = [T(*shape, dtype="bfloat16") for shape in ((5, 3, 8), (1, 3, 16), (1, 3, 16), (5, 3, 16))]
    node = maker(
        "aten._cudnn_rnn.default", half[0], weights, 4, None, half[1], half[2], 2, 16, 0, 1, False, 0.0, True, False,
        [], None, out=(half[3],),
    )  # fmt: skip
    work = work_of(node, target)
    assert (work.kernels, work.memcpys) == (2 * 5 + 1 + 1, 4)


def test_projections_are_not_known(maker, target):
    weights = [T(64, 8), T(64, 4), T(64), T(64), T(4, 16)]
    node = maker(
        "aten._cudnn_rnn.default", T(5, 3, 8), weights, 5, T(2000), T(1, 3, 4), T(1, 3, 16), 2, 16, 4, 1, False, 0.0,
        True, False, [], None, out=(T(5, 3, 4),),
    )  # fmt: skip
    work = work_of(node, target)
    assert (work.kernels, work.source) == (None, "unknown")
    assert work.matmul_flops == 2 * 5 * 3 * (64 * 8 + 64 * 4 + 4 * 16)
