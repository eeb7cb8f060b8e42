"""Every sample runs with no GPU, and its picture shows what its docstring says."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from optrace.cli import main

from optrace.program import Options, find_program
from optrace.tracing import Mode, open_session
from optrace.tracing.standin import Assume

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ``graph.json`` of a sample."""
    monkeypatch.chdir(tmp_path)

    def graph(sample: str, *words: str) -> Any:
        assert main([str(SAMPLES / sample), "--mode", "fake", "-q", "-o", "graph.json", *words]) == 0
        record = json.loads(Path("graph.json").read_text())
        assert record["totals"]["partial"] == {}
        assert [reason for reason in record["incomplete"] if not reason.startswith("guess: ")] == []
        return record

    return graph


def launching(record: Any) -> list[Any]:
    return [node for node in record["nodes"] if node["launches"]]


def by_op(record: Any, name: str) -> list[Any]:
    return [node for node in record["nodes"] if node["op"].split(".")[1] == name]


def bounds(record: Any) -> Counter[str]:
    return Counter(node["bound"] for node in launching(record))


def modules(record: Any) -> set[str]:
    return {node["module"] for node in record["nodes"] if node["module"]}


# -- the toy block, by hand ---------------------------------------------------------------------------

LESSON = ("--dispatch-us", "4", "--launch-us", "6", "--bandwidth-tb", "3.3")
MB = 10**6


def test_the_toy_block_in_the_large_regime(graph: Any) -> None:
    """5 kernels; (3 + 4 x 2) x 32 MB = 352 MB, 107 us at 3.3 TB/s; 5 x (4 + 6) = 50 us: bandwidth."""
    record = graph("toy_block.py", "--gpu", "h100", *LESSON)
    totals = record["totals"]
    assert [node["op"] for node in record["nodes"]] == [
        "aten.mm.default",
        "aten.add.Tensor",
        "aten.gelu.default",
        "aten.native_dropout.default",
        "aten.add.Tensor",
    ]
    lesson = totals["lesson"]
    assert lesson["kernels"] == 1 + 4
    # The bias has 4,000 elements and stands for no tensor of its own.
    assert lesson["bytes"] == (3 + 4 * 2) * 32 * MB
    assert lesson["traffic_us"] == pytest.approx(352 / 3.3, rel=1e-6)
    assert lesson["traffic_us"] == pytest.approx(107, abs=0.5)
    assert lesson["tax_us"] == 5 * (4 + 6)


def test_the_toy_blocks_own_figures_beside_them(graph: Any) -> None:
    record = graph("toy_block.py", "--gpu", "h100", *LESSON)
    totals, nodes = record["totals"], record["nodes"]
    # mm 3, bias add 2 (+ 8 kB of bias), gelu 2, dropout 2 and a mask of a byte an element, residual add 3.
    assert totals["tensor_bytes"] == (3 + 2 + 2 + 2 + 3) * 32 * MB + 16 * MB + 4000 * 2
    assert totals["tensor_bytes"] == pytest.approx(400 * MB, rel=1e-3)
    # The four read five activations and a bias. What one has written, the next may find in L2, no more than that.
    read = sum(node["hbm_read"] for node in nodes[1:])
    assert (5 - 3) * 32 * MB <= read <= 5 * 32 * MB + 4000 * 2
    assert nodes[0]["bound"] == "compute"
    assert nodes[0]["roofline_us"] == pytest.approx(2 * 4000**3 / 989.4e12 * 1e6)
    assert nodes[0]["roofline_us"] == pytest.approx(129, abs=0.5)
    assert [node["bound"] for node in nodes[1:]] == ["memory"] * 4


def test_the_toy_block_in_the_small_regime(graph: Any) -> None:
    record = graph("toy_block.py", "--gpu", "h100", *LESSON, "--", "--small")
    assert [node["bound"] for node in record["nodes"]] == ["launch"] * 5
    assert record["totals"]["bottleneck"] == "launch"
    lesson = record["totals"]["lesson"]
    assert lesson["kernels"] == 5
    assert lesson["tax_us"] == 50 > 100 * lesson["traffic_us"]


@pytest.mark.parametrize("count", [0, 2, 6])
def test_the_toy_blocks_elementwise_ops_are_cut_and_extended(graph: Any, count: int) -> None:
    record = graph("toy_block.py", "--", "--elements", "1e4", "--elementwise", str(count))
    # A product of 100 x 100 is split along k, and summed by a second kernel.
    assert record["totals"]["kernels"] == 2 + count
    assert record["nodes"][0]["outputs"][0]["shape"] == [100, 100]


def test_an_activation_read_and_written_once(tmp_path: Path, graph: Any) -> None:
    """One read and write of an (8, 4096, 4096) bf16 activation: 2 x 256 MiB, 163 us at 3.3 TB/s."""
    program = tmp_path / "activation.py"
    program.write_text(
        "import torch\n"
        "model = torch.nn.GELU()\n"
        "def get_inputs(): return torch.empty(8, 4096, 4096, dtype=torch.bfloat16)\n"
    )
    lesson = graph(str(program), *LESSON)["totals"]["lesson"]
    assert lesson["bytes"] == 2 * 8 * 4096 * 4096 * 2 == 512 << 20
    assert lesson["traffic_us"] == pytest.approx(163, abs=0.5)


# -- the others ---------------------------------------------------------------------------------------


def test_mlp_train(graph: Any) -> None:
    record = graph("mlp_train.py")
    phases = Counter(node["phase"] for node in launching(record))
    assert set(phases) >= {"forward", "backward", "optimizer"}
    assert bounds(record).most_common(1)[0][0] == "launch"
    assert record["totals"]["bottleneck"] == "launch"
    assert any("_foreach_" in node["op"] for node in record["nodes"])
    assert len(graph("mlp_train.py", "--steps", "2")["nodes"]) == 2 * len(record["nodes"])


def test_gpt_block(graph: Any) -> None:
    record = graph("gpt_block.py", "--dtype", "bf16")
    # The queue starts empty, so the first ops wait for the host.
    filled = launching(record)[3:]
    assert {node["bound"] for node in filled if node["matmul_flops"]} == {"compute"}
    assert {node["bound"] for node in filled if not node["matmul_flops"]} == {"memory"}
    for op in ("native_layer_norm", "gelu", "add"):
        assert by_op(record, op)[-1] in filled
    assert {"Block.attn", "Block.mlp"} <= modules(record)
    assert graph("gpt_block.py", "--dtype", "bf16", "--train", "--batch", "2")["totals"]["launches"] > 30


def test_resnet_block(graph: Any) -> None:
    record = graph("resnet_block.py")
    in_place = [node["op"] for node in record["nodes"] if any(node["writes"])]
    assert {"aten.relu_.default", "aten.add_.Tensor"} <= set(in_place)
    assert all(node["launches"] > 1 for node in by_op(record, "convolution")[:2])  # layout copies around them
    # The GPU is idle until the host has come to the first, but busy with it for longer.
    assert [node["bound"] for node in by_op(record, "convolution")] == ["memory", "compute", "memory"]
    for op in ("cudnn_batch_norm", "relu_"):
        assert {node["bound"] for node in by_op(record, op)} == {"memory"}
    assert graph("resnet_block.py", "--train", "--optimizer", "sgd")["totals"]["launches"] > 20


def test_lstm_cell_loop(graph: Any) -> None:
    record = graph("lstm_cell_loop.py", "--assume", "zero")
    assert bounds(record)["sync"] == 12
    assert bounds(record)["launch"] > bounds(record)["memory"] + bounds(record)["compute"]
    without = graph("lstm_cell_loop.py", "--assume", "zero", "--", "--no-item")
    assert bounds(without)["sync"] == 0
    assert without["totals"]["wall_us"] < record["totals"]["wall_us"]


def test_kv_decode(graph: Any) -> None:
    record = graph("kv_decode.py")
    assert record["totals"]["bottleneck"] == "launch"
    assert 50 < record["totals"]["launches"] < 250
    assert all(node["bound"] != "compute" for node in record["nodes"])
    four = graph("kv_decode.py", "--steps", "4")
    assert four["steps"] == 4
    assert four["totals"]["launches"] == 4 * record["totals"]["launches"]


def test_a_decode_step_reports_launches_and_tax_a_token(
    graph: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    launches = graph("kv_decode.py")["totals"]["launches"]
    capsys.readouterr()
    main([str(SAMPLES / "kv_decode.py"), "--mode", "fake", "--steps", "4"])
    assert re.search(
        rf"^a step .* {launches} launches, .* of host tax \(1 of 4 steps\)$",
        capsys.readouterr().out,
        re.MULTILINE,
    )


@pytest.mark.skipif(not importlib.util.find_spec("transformers"), reason="transformers is not installed")
@pytest.mark.filterwarnings("default")  # transformers' own
def test_transformers_config(graph: Any) -> None:
    record = graph("transformers_config.py", "--dtype", "bf16")
    assert sum(name.endswith("layers.3") for name in modules(record)) or any(
        "layers.3" in n for n in modules(record)
    )
    assert graph("transformers_config.py", "--train")["totals"]["launches"] > record["totals"]["launches"]


@pytest.mark.skipif(bool(importlib.util.find_spec("transformers")), reason="transformers is installed")
def test_transformers_config_says_what_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLES / "transformers_config.py"), "--mode", "fake"]) == 2
    assert "optrace: this sample needs transformers (pip install transformers)" in capsys.readouterr().err


def test_script_main(graph: Any) -> None:
    record = graph("script_main.py", "--warmup", "1", "--", "--width", "256")
    assert {node["phase"] for node in launching(record)} >= {"forward", "backward", "optimizer"}
    assert not by_op(record, "clone")
    assert {256, 64} <= {
        size for node in record["nodes"] for tensor in node["outputs"] for size in tensor["shape"]
    }
    two = graph("script_main.py", "--warmup", "1", "--steps", "2", "--", "--width", "256")
    assert two["steps"] == 2
    assert len(two["nodes"]) == 2 * len(record["nodes"])


def test_kernelbench_style(graph: Any) -> None:
    record = graph("kernelbench_style.py", "--no-grad")
    large = [node for node in record["nodes"] if [4096, 16384] in [t["shape"] for t in node["inputs"]]]
    assert {node["bound"] for node in large} == {"memory"}
    assert len(large) == 6
    assert sum(node["outputs"][0]["shape"] == [4096, 16384] for node in large) == 5
    assert record["totals"]["launches"] == 7
    assert record["totals"]["bottleneck"] == "memory"


def test_every_sample_says_what_its_picture_shows_and_how_to_run_it() -> None:
    for sample in SAMPLES.glob("*.py"):
        docstring = sample.read_text().split('"""')[1]
        assert "**What the picture shows.**" in docstring, sample
        assert re.search(rf"optrace samples/{sample.name}.* (-o|--out) ", docstring), sample


# -- with real values ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        ("toy_block.py", {"args": ("--small",)}),
        ("mlp_train.py", {}),
        ("resnet_block.py", {"batch": 1}),
        ("lstm_cell_loop.py", {}),
        ("script_main.py", {"warmup": 1, "args": ("--width", "64")}),
    ],
)
def test_cpu_mode_records_the_calls_of_fake_mode(sample: str, options: dict[str, Any]) -> None:
    def calls(mode: Mode, assume: Assume) -> list[Any]:
        target = str(SAMPLES / sample)
        with (
            open_session(mode, assume=assume) as session,
            find_program(target, Options(**options)) as program,
        ):
            program.run(session)
        assert not [r for r in session.graph.info.incomplete if mode == "cpu" or "guess" not in r]
        return [
            (node.op, [(t.shape, t.stride, t.dtype, t.device) for t in (*node.inputs, *node.outputs)])
            for node in session.graph
        ]

    assert calls("cpu", "error") == calls("fake", "zero")


def test_attention_falls_pass_by_pass(graph: Any) -> None:
    """Outside of the attention a layer launches 11 times: 2 norms, 3 projections, the output, 2 products and a gelu of
    the MLP, 2 residual adds. Written out the attention takes 9: 4 copies, 2 products and a memset, scale, softmax;
    fused it takes a kernel and a memset; one projection takes the place of 3."""
    totals = [
        graph(f"attention_passes.py:{name}", "--no-grad", "--dtype", "bf16")["totals"]
        for name in ("WrittenOut", "FusedAttention", "OneProjection")
    ]
    launches = [row["launches"] for row in totals]
    assert launches == [4 * (11 + 9), 4 * (11 + 2), 4 * (11 + 2 - 2)]
    assert totals[1]["hbm_bytes"] < 0.5 * totals[0]["hbm_bytes"]
    assert totals[1]["peak_bytes"] < totals[0]["peak_bytes"]
