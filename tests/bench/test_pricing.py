"""What pricing and replaying a record takes, and how that grows with its calls.

    python -m pytest tests/bench/test_pricing.py -s

The record is a training step of an encoder, tiled: as many steps as it takes, on the same parameters. Times are process
time, the least of some rounds. Not part of the test gate.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from optrace.cost import traffic
from optrace.cost.memory import created
from optrace.cost.pricing import PricedGraph, price
from optrace.cost.profiles import pricing
from optrace.graph import OpGraph
from optrace.report import report
from optrace.timeline import replay
from optrace.tracing import open_session
from tests.bench.test_beside import encoder, gpt2, resnet50

pytest.importorskip("pytest_benchmark", reason="the benchmarks are run by pytest-benchmark")

CALLS = (1_000, 10_000, 100_000, 1_000_000)

#: Rows a call, an operand, an output, a tensor, and what is freed when.
_PLAIN = ("_op", "_template", "_source", "_module", "_phase", "_stream", "_autograd", "_python_us")
_OF_TENSORS = ("_operand_flags", "_tensor_layout", "_tensor_offset")


def training_step() -> OpGraph:
    """Three layers of width 256, batch 16 of 64 tokens, AdamW; the second step."""
    with open_session("fake") as session:
        with torch.device("cuda"):
            layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
            model, x = (
                nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).train(),
                torch.randn(16, 64, 256),
            )
        optimizer = torch.optim.AdamW(model.parameters())
        for recorded in (False, True):
            optimizer.zero_grad()
            with session.recording() if recorded else torch.enable_grad():
                model(x).sum().backward()
                optimizer.step()
        session.describe("an encoder's training step")
        return session.graph


def tiled(graph: OpGraph, times: int) -> OpGraph:
    """The run so many times over: what stood before it is the same each time, what it makes is new and is gone when
    its turn is over."""
    columns = graph.columns()
    born, _ = created(columns)
    made = np.flatnonzero(born >= 0)
    left = np.setdiff1d(made, columns.freed_storage)
    tensors, calls = len(columns.tensor_storage), len(graph)
    result = OpGraph(graph.info)
    for name in (
        "ops",
        "templates",
        "layouts",
        "sources",
        "module_calls",
        "_op_numbers",
        "_template_numbers",
    ):
        setattr(result, name, getattr(graph, name))
    result.storages = list(graph.storages)
    for turn in range(times):
        number = np.arange(len(graph.storages))
        if turn:
            number[made] = len(result.storages) + np.arange(len(made))
            result.storages += [graph.storages[storage] for storage in made]
        for name in (*_PLAIN, *_OF_TENSORS):
            getattr(result, name).extend(getattr(graph, name))
        storages = columns.tensor_storage
        rows = {
            "_operands": columns.operands + turn * tensors,
            "_outputs": columns.outputs + turn * tensors,
            "_operand_end": columns.operand_start[1:] + turn * len(columns.operands),
            "_output_end": columns.output_start[1:] + turn * len(columns.outputs),
            "_tensor_storage": np.where(storages >= 0, number[storages], -1),
        }
        once = np.isin(columns.freed_storage, made) | (turn == 0)
        rows["_freed_storage"] = np.concatenate((number[columns.freed_storage[once]], number[left]))
        rows["_freed_after"] = np.concatenate(
            (columns.freed_after[once] + turn * calls, np.full(len(left), (turn + 1) * calls - 1))
        )
        for name, values in rows.items():
            column = getattr(result, name)
            column.frombytes(
                values.astype(f"{'i' if column.typecode.islower() else 'u'}{column.itemsize}").tobytes()
            )
    return result


def seconds(graph: OpGraph, gpu: str) -> tuple[float, float, PricedGraph]:
    """Process time of pricing, and of the queue."""
    start = time.process_time()
    priced = price(graph, pricing(gpu, "default"))
    middle = time.process_time()
    replay(priced)
    return middle - start, time.process_time() - middle, priced


def test_growth_with_the_number_of_calls(benchmark, capsys: Any):
    step = training_step()
    rows = []
    for calls in CALLS:
        graph = tiled(step, max(1, calls // len(step)))
        runs = [seconds(graph, "h200") for _ in range(2)]
        rows.append(
            (
                len(graph),
                min(run[0] for run in runs),
                min(run[1] for run in runs),
                len(runs[0][2].memory.replayed),
            )
        )
    benchmark.pedantic(lambda: seconds(step, "h200"), rounds=2)
    with capsys.disabled():
        print(f"\na step of {len(step)} calls, tiled; load {os.getloadavg()[0]:.0f}")
        for calls, priced, replayed, allocated in rows:
            each = (priced + replayed) / calls * 1e6
            print(
                f"  {calls:9,} calls: priced {priced:6.2f} s, replayed {replayed:5.2f} s, {each:7.1f} us a call, {allocated} through the allocator"
            )
        sizes = np.log([row[0] for row in rows])
        totals = np.log([row[1] + row[2] for row in rows])
        print(
            f"  exponent: {np.polyfit(sizes, totals, 1)[0]:.2f}, of the last two {np.diff(totals)[-1] / np.diff(sizes)[-1]:.2f}"
        )


def test_a_usual_step_priced_for_another_gpu(benchmark, capsys: Any):
    """Without tracing again: counts, memory, L2, queue, verdict."""
    step = training_step()
    seconds_of = []
    for gpu in ("h100", "b200", "a100-80gb"):
        start = time.process_time()
        report(step, pricing(gpu, "default"))
        seconds_of.append(time.process_time() - start)
    benchmark.pedantic(lambda: report(step, pricing("h100", "default")), rounds=2)
    with capsys.disabled():
        print(f"\n{len(step)} calls for h100, b200, a100-80gb: {', '.join(f'{s:.2f} s' for s in seconds_of)}")


@pytest.mark.parametrize("program", [gpt2, resnet50, encoder])
def test_what_taking_equal_stretches_for_one_leaves_out(program, monkeypatch, capsys: Any):
    """HBM bytes and device time, against the L2 model run over every call of two steps."""
    with open_session("fake") as session:
        step = program("cuda")
        step()
        with session.recording():
            step()
        graph = session.graph
    start = time.process_time()
    quick = report(graph, pricing("h200", "default"))
    middle = time.process_time()
    monkeypatch.setattr(traffic, "_SETTLED", float("inf"))
    whole = report(graph, pricing("h200", "default"))
    took = middle - start, time.process_time() - middle
    with capsys.disabled():
        print(f"\n{program.__name__}: {len(graph)} calls, {took[0]:.2f} s instead of {took[1]:.2f} s")
        for name in ("hbm_read", "hbm_written", "device_us"):
            print(f"  {name:12} {100 * (quick.totals[name].value / whole.totals[name].value - 1):+.3f} %")
