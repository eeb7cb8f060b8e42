"""What only a CUDA GPU can show: the same calls in cuda and in fake mode, and what a measured step holds."""

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from optrace.measuring import steady
from optrace.tracing import StandinDevice, TraceError, open_session
from optrace.tracing.session import stood_in_before

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(
        stood_in_before(), reason="a stand-in was active in this process: run pytest tests/cuda by itself"
    ),
    # torch's profiler says so once a process, whatever is asked of it.
    pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning"),
]

SAMPLES = Path(__file__).parents[2] / "samples"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.head = nn.Linear(64, 100)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))


def training():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 100, (4, 32), device="cuda")

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def convolution():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)
    ).cuda()
    x = torch.randn(2, 3, 16, 16, device="cuda")
    return lambda: model(x).sum().backward()


def recurrent():
    model = nn.LSTM(16, 32, 2).cuda()
    x = torch.randn(5, 2, 16, device="cuda")
    return lambda: model(x)[0].sum().backward()


def recorded(mode, build):
    properties = torch.cuda.get_device_properties(0)
    answers = StandinDevice(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
    )
    with open_session(mode, answers=answers) as session:
        step = build()
        step()
        with session.recording():
            step()
    return session.graph


def stream_of(graph):
    return [
        (n.op, n.phase, n.module and n.module.path, [str(t) for t in n.inputs], [str(t) for t in n.outputs])
        for n in graph
    ]


def test_backward_calls_keep_their_module_in_the_engines_own_thread():
    graph = recorded("cuda", training)
    backward = [
        node
        for node in graph
        if node.phase == "backward" and node.label in ("mm", "native_layer_norm_backward")
    ]
    assert backward
    assert all(node.module is not None for node in backward)
    assert all(node.source.line is not None for node in backward)


def test_streams_are_told_apart():
    side = torch.cuda.Stream()
    x = torch.ones(8, device="cuda")

    def step():
        x + 1
        with torch.cuda.stream(side):
            x * 2

    graph = recorded("cuda", lambda: step)
    assert len({node.stream for node in graph}) == 2


def test_a_measured_step_is_whole():
    from optrace.measuring.recorder import measure

    with open_session("cuda") as session:
        measured = measure(session, "training", training(), repeats=5, seconds=1.0)
    row = measured.row
    assert not row["stray"]
    assert row["n_kernels"] == sum(len(call["kernels"]) for call in row["ops"]) > 50
    assert row["gpu_us"] > 0
    assert 0 < row["issue_us"] <= row["wall_us"]
    assert row["mem_peak"] >= row["mem_base"]
    matmuls = [call for call in row["ops"] if call["op"] in ("aten.mm.default", "aten.addmm.default")]
    assert all(any(k["kind"] == "kernel" for k in call["kernels"]) for call in matmuls)
    assert {call["phase"] for call in row["ops"]} == {"forward", "backward", "optimizer"}


def test_events_and_profiler_measure_the_same_kernel():
    from optrace.measuring.recorder import measure

    x = torch.ones(64 << 20, device="cuda")
    with open_session("cuda") as session:
        measured = measure(session, "stream", lambda: x.mul_(1.0), repeats=5, seconds=1.0)
    assert len(measured.call_us) == 1
    assert measured.event_us[0] == pytest.approx(measured.call_us[0], rel=0.15)
    assert measured.event_cold_us[0] == pytest.approx(measured.call_us[0], rel=0.15)
    assert measured.call_us[0] <= measured.wall.median


def test_an_operand_in_l2_is_quicker_than_with_l2_flushed():
    from optrace.measuring.recorder import measure

    x = torch.ones(4 << 20, device="cuda")  # 16 MiB
    with open_session("cuda") as session:
        measured = measure(session, "stream", lambda: x.mul_(1.0), repeats=5, seconds=1.0)
    assert measured.event_us[0] < measured.event_cold_us[0]


@pytest.mark.parametrize("sample", ["toy_block.py", "mlp_train.py", "kv_decode.py"])
def test_the_command_measures_models_and_programs_that_mark_their_steps(sample, tmp_path):
    words = [str(SAMPLES / sample), "--seconds", "0.3", "--save", "record.jsonl.gz", "-o", "graph.dot"]
    done = subprocess.run(
        [sys.executable, "-m", "optrace.cli", "measure", *words],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "wall clock" in done.stdout
    packed = (tmp_path / "record.jsonl.gz").read_bytes()
    machine, row = (json.loads(line) for line in gzip.decompress(packed).splitlines())
    assert machine["device"] == torch.cuda.get_device_name()
    assert row["n_kernels"] > 0
    assert "measured" in (tmp_path / "graph.dot").read_text()


def test_the_command_captures_and_compiles(tmp_path):
    """16 chained launches: a replay is no slower than eager, and the compiler fuses what it is given."""
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "x = torch.ones(4096, device='cuda')\n"
        "def step():\n"
        "    y = x\n"
        "    for _ in range(16):\n"
        "        y = (y * 2).relu()\n"
        "    return y\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "optrace.cli", "model.py", "--verify", "--save-cures", "cures.jsonl"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.count("  measured") == 4
    row = json.loads((tmp_path / "cures.jsonl").read_text())
    assert row["eager_k"] == row["graph_k"] == 32
    assert row["graph_us"] < row["eager_us"]
    assert row["compiled_k"] == 1


@pytest.mark.parametrize(
    ("sample", "options"),
    [
        ("toy_block.py", []),
        ("kernelbench_style.py", []),
        ("gpt_block.py", ["--train"]),
        ("resnet_block.py", ["--train"]),
    ],
)
def test_samples_run_on_the_gpu_as_on_the_stand_in(sample, options, tmp_path):
    """Each mode in a process of its own, as users run it; both at once, since most of it is importing torch."""
    outs = {mode: tmp_path / f"{mode}.json" for mode in ("cuda", "fake")}
    runs = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "optrace.cli", str(SAMPLES / sample), "--mode", mode, "-q"),
                *("-o", str(out), *options),
            ],
            cwd=tmp_path,
        )
        for mode, out in outs.items()
    ]
    assert [run.wait() for run in runs] == [0, 0]
    found = [
        [
            (
                n["op"],
                n["phase"],
                n["module"],
                [(t["shape"], t["stride"], t["dtype"], t["device"]) for t in n["outputs"]],
            )
            for n in json.loads(out.read_text())["nodes"]
        ]
        for out in outs.values()
    ]
    assert found[0] == found[1]


BUILDS = (training, convolution, recurrent)


@pytest.fixture(scope="module")
def on_the_gpu():
    """Recorded before the stand-in takes the process's accelerator."""
    return {build: stream_of(recorded("cuda", build)) for build in BUILDS}


@pytest.mark.parametrize("build", BUILDS)
def test_fake_mode_records_what_the_gpu_runs(build, on_the_gpu):
    """Last of this file: from here on the process has a stand-in for its accelerator."""
    assert stream_of(recorded("fake", build)) == on_the_gpu[build]


def test_cuda_mode_refuses_to_follow_fake_mode():
    with pytest.raises(TraceError, match="in a process of its own"), open_session("cuda"):
        pass


def test_the_thread_of_backward_passes_is_another_and_stays_free_to_be_moved():
    def look():
        allowed = os.sched_getaffinity(0)
        steady._move_to(min(allowed))
        return threading.get_ident(), os.sched_getaffinity(0) == allowed

    thread, free = steady._in_backward("cuda", look)
    assert thread != threading.get_ident()
    assert free
    assert 0 < steady.loop_turn_us("cuda") < 1000


def test_only_a_step_that_goes_backward_makes_that_thread_work():
    layer, x = nn.Linear(64, 64, device="cuda"), torch.ones(8, 64, device="cuda")
    layer(x).sum().backward()
    assert steady.goes_backward("cuda", lambda: layer(x)) is None
    assert steady.goes_backward("cuda", lambda: layer(x).sum().backward()) == "cuda"
