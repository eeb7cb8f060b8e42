"""Every sample as a ``GraphModule``: small, on the CPU, with real values."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from optrace.program import Options, find_program
from optrace.tracing import open_session
from optrace.tracing.fx import graph_module
from optrace.tracing.keeping import KeepingTracer
from tests.bridge.replay import same_bits

SAMPLES = Path(__file__).parents[2] / "samples"

#: Sizes in a sample's source, smaller: eager runs them on the CPU here.
SMALLER = {
    "attention_passes.py": {
        "WIDTH, HEADS, LAYERS = 512, 8, 4": "WIDTH, HEADS, LAYERS = 32, 4, 2",
        "512, WIDTH)": "16, WIDTH)",
    },
    "gpt_block.py": {"WIDTH, HEADS, LENGTH = 1024, 16, 2048": "WIDTH, HEADS, LENGTH = 32, 4, 16"},
    "kernelbench_style.py": {"4096, 16384": "8, 64", "[16384, ": "[64, "},
    "kv_decode.py": {
        "= 1024, 16, 8, 1024, 32000": "= 32, 4, 2, 32, 64",
        "PROMPT, TOKENS = 512, 8": "PROMPT, TOKENS = 16, 2",
    },
    "lstm_cell_loop.py": {"WIDTH, BATCH, STEPS = 256, 32, 12": "WIDTH, BATCH, STEPS = 8, 4, 3"},
    "mlp_train.py": {},
    "resnet_block.py": {},
    "script_main.py": {},
    "toy_block.py": {},
    "transformers_config.py": {
        "vocab_size=32000": "vocab_size=64",
        "hidden_size=512": "hidden_size=32",
        "intermediate_size=1536": "intermediate_size=64",
        "num_hidden_layers=4": "num_hidden_layers=2",
        "0, 32000, (batch, 128)": "0, 64, (batch, 8)",
    },
}

#: What is run, in which way: all steps but those before the first that is recorded.
RUNS: list[tuple[str, dict[str, Any]]] = [
    ("attention_passes.py:WrittenOut", {}),
    ("attention_passes.py:FusedAttention", {"dtype": "bf16", "no_grad": True}),
    ("attention_passes.py:OneProjection", {"train": True}),
    ("gpt_block.py", {"train": True}),
    ("kernelbench_style.py", {}),
    ("kv_decode.py", {"steps": 2}),
    ("lstm_cell_loop.py", {}),
    ("mlp_train.py", {"steps": 4}),
    ("resnet_block.py", {"train": True, "optimizer": "sgd", "batch": 2}),
    ("script_main.py", {"steps": 4, "args": ("--width", "16")}),
    ("script_main.py", {"warmup": 1, "steps": 3, "args": ("--width", "16")}),
    ("toy_block.py", {"args": ("--small",)}),
    ("transformers_config.py", {"train": True}),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads come in an order of their own."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def on_the_cpu(sample: str, folder: Path) -> str:
    """A small copy of a sample that names no GPU."""
    name, _, entry = sample.partition(":")
    source = (SAMPLES / name).read_text()
    for large, small in SMALLER[name].items():
        assert large in source, f"{name} no longer says {large!r}"
        source = source.replace(large, small)
    copy = folder / name
    copy.write_text(source.replace('"cuda"', '"cpu"').replace(".cuda()", ""))
    return f"{copy}:{entry}" if entry else str(copy)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Every tensor that a recorded call reads or makes, kept alive."""
    found: list[torch.Tensor] = []
    call = KeepingTracer.call

    def watched(tracer: KeepingTracer, run: Any, func: Any, args: Any, kwargs: Any) -> Any:
        result = call(tracer, run, func, args, kwargs)
        if tracer.enabled:
            leaves = pytree.tree_leaves((args, kwargs, result))
            found.extend(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result

    monkeypatch.setattr(KeepingTracer, "call", watched)
    return found


@pytest.mark.parametrize(("sample", "options"), RUNS, ids=[f"{s} {' '.join(o)}".strip() for s, o in RUNS])
def test_each_tensor_of_a_sample_comes_out_the_same(
    sample: str, options: dict[str, Any], tmp_path: Path, held: list[torch.Tensor]
) -> None:
    """The calls are the trace's, and what each of them made, read or wrote ends as eager's did, bit for bit."""
    if "transformers" in sample:
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    with warnings.catch_warnings(), open_session("cpu", device="cpu", keep_values=True) as session:
        warnings.simplefilter("ignore")  # of the sample's own libraries
        with find_program(on_the_cpu(sample, tmp_path), Options(**options)) as program:
            program.run(session)
        graph, kept = session.graph, session.kept
    assert kept is not None
    eager = [tensor for tensor in held if kept.number_of(tensor) is not None]
    assert len(eager) >= len(graph)
    module = graph_module(graph, kept, outputs=eager)
    module.graph.lint()
    calls = [str(node.target) for node in module.graph.nodes if "optrace" in node.meta]
    assert calls == [node.op for node in graph]
    signature = module.meta["optrace"]
    with signature.seeded():
        returned = module(*signature.example_inputs)
    for place, expected in enumerate(eager):
        assert same_bits(returned[place], expected), f"{signature.outputs[place]} differs"
