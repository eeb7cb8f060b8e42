"""Is the stream of calls the same in every mode? Samples, programs and further architectures on a GPU.

    python -m tests.standin.compare_modes [--programs PROGRAMS.py] [--seconds 110] [--only NAME] [--save OUT.json]

From the root of the repository, on a machine with a GPU. Four ways of tracing are compared call by call:

    cuda     on the GPU
    visible  fake mode, the GPU in sight
    hidden   fake mode, CUDA_VISIBLE_DEVICES empty
    cpu      cpu mode, CUDA_VISIBLE_DEVICES empty: samples and small programs only

Each way is traced by processes of its own (torch has one accelerator a process), all at once; a process begins no
program after ``--seconds``. PROGRAMS.py defines ``suite()`` as for ``compare_record``. Two calls are the same when
overload, shapes, dtypes, devices and plain arguments are equal; strides are counted apart. Without a GPU, hidden is
compared with cpu. Exit status 1 if a program differs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from optrace.graph import OpGraph, TensorMeta
from optrace.program import Options, find_program
from optrace.tracing import Session, StandinDevice, open_session
from tests.standin.compare_record import WARM_UP_STEPS, load_programs
from tests.standin.further_architectures import KINDS, Steps, architectures
from tests.standin.programs import PROGRAMS

SAMPLES: tuple[tuple[str, Options], ...] = (
    ("toy_block.py", Options(args=("--small",))),
    ("toy_block.py", Options()),
    ("mlp_train.py", Options()),
    ("gpt_block.py", Options(dtype="bf16")),
    ("gpt_block.py", Options(dtype="bf16", train=True, batch=2)),
    ("gpt_block.py", Options(autocast=True, train=True, batch=1)),
    ("resnet_block.py", Options()),
    ("resnet_block.py", Options(train=True, optimizer="sgd")),
    ("lstm_cell_loop.py", Options()),
    ("kv_decode.py", Options(warmup=1)),
    ("script_main.py", Options(warmup=1, args=("--width", "256"))),
    ("kernelbench_style.py", Options(no_grad=True)),
    ("transformers_config.py", Options(dtype="bf16")),
    ("transformers_config.py", Options(train=True)),
)

#: Of programs and architectures, what the CPU computes in seconds.
SMALL = (
    "toy_small_8x64_f32_x16",
    "toy_mid_f32_x4",
    "mlp_train_b64_adamw",
    "mlp_train_b64_forloop",
    "lstm_train",
    "gru_infer_b1",
    "item_in_loop",
)

#: The first three once differed in training.
ARCHITECTURES = (
    "transformers FalconForCausalLM",
    "transformers BartForConditionalGeneration",
    "timm pvt_v2_b0",
    "transformers Qwen2ForCausalLM",
    "transformers GPTNeoXForCausalLM",
    "transformers BertForMaskedLM",
    "timm swin_tiny_patch4_window7_224",
    "timm densenet121",
    "transformers OPTForCausalLM",
    "transformers Gemma2ForCausalLM",
    "transformers Mamba2ForCausalLM",
    "timm convnextv2_nano",
    "timm seresnet50",
    "transformers BloomForCausalLM",
    "transformers ViTModel",
    "timm mobilevitv2_050",
    "timm xcit_nano_12_p16_224",
    "transformers DebertaV2Model",
    "transformers WhisperForConditionalGeneration",
    "timm mixer_b16_224",
    "transformers XLNetLMHeadModel",
    "transformers Olmo2ForCausalLM",
)

WAYS: dict[str, Literal["fake", "cpu", "cuda"]] = {
    "cuda": "cuda",
    "visible": "fake",
    "hidden": "fake",
    "cpu": "cpu",
}
#: Processes of a way, which share its programs.
SHARES = 3

#: A call in comparable form: overload, tensors without strides, plain arguments; and its strides.
Row = tuple[tuple[str, Any, Any], tuple[tuple[int, ...], ...]]


def rows(graph: OpGraph, first: int) -> list[Row]:
    """The calls of a graph from number ``first`` on."""
    return [
        (
            (
                node.op,
                tuple((t.shape, t.dtype, t.device.split(":")[0]) for t in (*node.inputs, *node.outputs)),
                (_plain(node.args), _plain(tuple(node.kwargs.items()))),
            ),
            tuple(t.stride for t in (*node.inputs, *node.outputs)),
        )
        for node in itertools.islice(graph, first, None)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, TensorMeta):
        return "tensor"
    if isinstance(value, float):
        return repr(round(value, 9))  # a NaN is equal to none
    return tuple(_plain(item) for item in value) if isinstance(value, tuple) else value


Trace = Callable[[Session], list[Row]]


def _sample(file: str, options: Options) -> Trace:
    def trace(session: Session) -> list[Row]:
        with find_program(f"samples/{file}", options) as program:
            program.run(session)
        return rows(session.graph, 0)

    return trace


def _steps(build: Callable[[str], Callable[[], Any]], warm_up: int) -> Trace:
    def trace(session: Session) -> list[Row]:
        step = build("cuda")
        for _ in range(warm_up):
            step()
        with session.recording():
            step()
        return rows(session.graph, 0)

    return trace


def subjects(way: str, programs: Path | None) -> Iterator[tuple[str, Trace]]:
    """What is traced, by name: what matters most first."""
    for file, options in SAMPLES:
        chosen = {name: value for name, value in asdict(options).items() if value != getattr(Options(), name)}
        yield f"sample {file} {chosen}", _sample(file, options)
    for name, build in PROGRAMS.items():
        if way != "cpu" or name in SMALL:
            yield f"program {name}", _steps(build, WARM_UP_STEPS)
    if way == "cpu":
        return
    made = {architecture.name: architecture for architecture in architectures()}
    for name in ARCHITECTURES:
        for kind in KINDS:

            def build_steps(device: str, name: str = name, kind: str = kind) -> Callable[[], Any]:
                step: Callable[[], Any] = getattr(Steps.of(made[name], device), kind)
                return step

            yield f"{name} {kind}", _steps(build_steps, 1)
    if programs is not None:
        for program in load_programs(programs).suite():
            if program.name not in PROGRAMS:
                yield f"program {program.name}", _steps(program.build, WARM_UP_STEPS)


@dataclass(frozen=True, slots=True)
class Traced:
    """Calls by program, and why others have none."""

    calls: dict[str, list[Row]]
    stopped: dict[str, str]


def trace(way: str, share: int, options: argparse.Namespace) -> Traced:
    """Trace every third program of a way, beginning none after the time is up."""
    warnings.simplefilter("ignore")
    answers = None
    if options.answers:
        facts = json.loads(options.answers)
        answers = StandinDevice(**facts | {"capability": tuple(facts["capability"])})
    end = time.monotonic() + options.seconds
    traced = Traced({}, {})
    for name, record in itertools.islice(subjects(way, options.programs), share, None, SHARES):
        if options.only not in name:
            continue
        if time.monotonic() > end:
            traced.stopped[name] = "no time left"
            continue
        torch.manual_seed(0)
        try:
            mode = WAYS[way]
            with open_session(mode, answers=answers, assume="zero" if mode == "fake" else "error") as session:
                traced.calls[name] = record(session)
        except Exception as error:  # a program that stops is a result
            traced.stopped[name] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        gc.collect()
        if way == "cuda":
            torch.cuda.empty_cache()
    return traced


def compare(want: list[Row], got: list[Row]) -> tuple[str | None, int, int]:
    """The first difference, if there is one; tensors, and how many of them have equal strides."""
    for number, (w, g) in enumerate(itertools.zip_longest(want, got)):
        if w is None or g is None or w[0] != g[0]:
            more = Counter(row[0][0] for row in got)
            more.subtract(Counter(row[0][0] for row in want))
            counts = {op: n for op, n in more.items() if n}
            return f"call {number} of {len(want)}: {_short(w)} is {_short(g)}; calls {counts}", 0, 0
    pairs = [pair for w, g in zip(want, got, strict=True) for pair in zip(w[1], g[1], strict=True)]
    return None, len(pairs), sum(a == b for a, b in pairs)


def _short(row: Row | None) -> str:
    return "nothing" if row is None else repr(row[0])[:400]


def all_ways(options: argparse.Namespace, ways: list[str]) -> dict[str, Traced]:
    """What each way traced."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for way, share in itertools.product(ways, range(SHARES)):
            saved = Path(folder, f"{way}{share}.pickle")
            environment = {**os.environ, "OMP_NUM_THREADS": "4" if way == "cpu" else "1"}
            if way in ("hidden", "cpu"):
                environment["CUDA_VISIBLE_DEVICES"] = ""
            command = [sys.executable, "-m", "tests.standin.compare_modes", *sys.argv[1:]]
            command += ["--answers", options.answers, "--child", way, str(share), str(saved)]
            running.append((way, saved, subprocess.Popen(command, env=environment)))
        found = {way: Traced({}, {}) for way in ways}
        for way, saved, process in running:
            if process.wait() == 0:
                part: Traced = pickle.loads(saved.read_bytes())
                found[way].calls.update(part.calls)
                found[way].stopped.update(part.stopped)
            else:
                found[way].stopped[saved.stem] = f"the process ended with {process.returncode}"
    return found


def _answers() -> str:
    """What the GPU says of itself, as JSON; empty without one. Asked in a process of its own."""
    ask = (
        "import json, torch; p = torch.cuda.get_device_properties(0); print(json.dumps(dict(name=p.name, "
        "capability=(p.major, p.minor), sm_count=p.multi_processor_count, memory_bytes=p.total_memory, "
        "l2_bytes=p.L2_cache_size)))"
    )
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--answers", default="", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        way, share, saved = options.child
        Path(saved).write_bytes(pickle.dumps(trace(way, int(share), options)))
        return 0

    options.answers = _answers()
    ways = list(WAYS) if options.answers else ["hidden", "cpu"]
    found = all_ways(options, ways)
    differences: dict[str, str] = {}
    summary: list[str] = []
    base = ways[0]
    for way in ways[1:]:
        both = [name for name in found[base].calls if name in found[way].calls]
        calls = tensors = equal = same = 0
        for name in both:
            difference, count, with_equal_strides = compare(found[base].calls[name], found[way].calls[name])
            if difference is not None:
                differences[f"{way} | {name}"] = difference
                continue
            same += 1
            calls += len(found[base].calls[name])
            tensors += count
            equal += with_equal_strides
        summary.append(
            f"{way} beside {base}: {same} of {len(both)} programs the same ({calls} calls), "
            f"strides equal for {equal} of {tensors} tensors"
        )
    stopped = {f"{way} | {name}": why for way in ways for name, why in found[way].stopped.items()}
    for title, lines in (("DIFFERENT", differences), ("STOPPED", stopped)):
        for name, text in lines.items():
            print(title, name, text)
    print(f"torch {torch.__version__}", *summary, sep="\n")
    if options.save:
        named = {way: {name: len(calls) for name, calls in found[way].calls.items()} for way in ways}
        result = {"summary": summary, "different": differences, "stopped": stopped, "calls": named}
        options.save.write_text(json.dumps(result, indent=1))
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main())
