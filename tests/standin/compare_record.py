"""Compare what the stand-in dispatches with a record made on a real GPU, call by call.

    python -m tests.standin.compare_record RECORD.jsonl.gz PROGRAMS.py [--only NAME] [--verbose]

RECORD holds one JSON object a program (`name`, `ops`; the first line describes the machine). PROGRAMS.py defines
`suite()`, a list of programs with a `name` and `build(device)`, which returns `step()`. Each program is built and
warmed up under the stand-in as it was on the GPU; one further step is recorded.

A call is the same when overload, shapes, dtypes, devices and plain arguments of inputs and outputs are equal;
strides are counted apart. Exit status 1 if a program differs or stops.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import itertools
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from optrace.tracing.standin import StandIn, standin

# Numbers that depend on how many steps an optimizer has made: the record was made after more of them.
STEP_DEPENDENT = (
    "aten._foreach_div_.ScalarList",
    "aten._foreach_addcdiv_.ScalarList",
    "aten.div.Tensor",
    "aten.addcdiv_.default",
)

# What the record has beside the calls that a backend executes.
NOISE = ("prim.", "profiler.")
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
WARM_UP_STEPS = 2  # the record was made warm: optimizer state exists


# Real changes between versions of torch in the recorded programs: the first version that has it, the call on
# torch 2.11, the call since, and what changed.
VERSION_DIFFERENCES: tuple[tuple[tuple[int, int], str, str, str], ...] = (
    (
        (2, 13),
        "aten.zeros.default",
        "aten.new_zeros.default",
        "the backward of topk, sort and max makes its zeros from the incoming gradient",
    ),
    (
        (2, 14),
        "aten._scaled_dot_product_cudnn_attention.default",
        "aten._scaled_dot_product_flash_attention.default",
        "cuDNN attention is not chosen for a dropout that is no multiple of 1/16",
    ),
    (
        (2, 14),
        "aten._scaled_dot_product_cudnn_attention_backward.default",
        "aten._scaled_dot_product_flash_attention_backward.default",
        "cuDNN attention is not chosen for a dropout that is no multiple of 1/16",
    ),
)


@dataclass(frozen=True, slots=True)
class Call:
    """One dispatched call in comparable form: tensors are ("tensor", shape, stride, dtype, device)."""

    op: str
    args: Any
    kwargs: Any
    out: Any

    def without_strides(self) -> tuple[Any, ...]:
        """What has to be equal for two calls to be the same."""
        if self.op in STEP_DEPENDENT:
            return (self.op, *(_drop_strides(_drop_floats(v)) for v in (self.args, self.kwargs, self.out)))
        return (self.op, _drop_strides(self.args), _drop_strides(self.kwargs), _drop_strides(self.out))

    def tensors(self) -> list[tuple[Any, ...]]:
        return list(_tensors((self.args, self.kwargs, self.out)))


def _drop_floats(value: Any) -> Any:
    if isinstance(value, float):
        return "float"
    if isinstance(value, list):
        return [_drop_floats(v) for v in value]
    if isinstance(value, dict):
        return {k: _drop_floats(v) for k, v in value.items()}
    return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 5 and value[0] == "tensor"


def _drop_strides(value: Any) -> Any:
    if _is_tensor(value):
        return (*value[:2], *value[3:])
    if isinstance(value, (list, tuple)):
        return [_drop_strides(v) for v in value]
    if isinstance(value, dict):
        return {k: _drop_strides(v) for k, v in value.items()}
    return value


def _tensors(value: Any) -> Iterator[tuple[Any, ...]]:
    if _is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _tensors(v)


class Recorder:
    """A watcher that keeps every call in the form of the record; brought before each where a graph's recorder is."""

    def __init__(self, gpu: StandIn) -> None:
        self.gpu = gpu
        self.calls: list[Call] = []

    def call(self, run: Callable[..., Any], func: Any, args: Any, kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            before = (self._plain(args), self._plain(kwargs))
        out = run(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            self.calls.append(Call(str(func), *before, _output(str(func), self._plain(out))))
        return out

    def _plain(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            device = self.gpu.device_of(value).split(":")[0]
            return ("tensor", list(value.shape), list(value.stride()), str(value.dtype)[6:], device)
        if isinstance(value, (list, tuple)):
            return [self._plain(v) for v in value]
        if isinstance(value, dict):
            return {k: self._plain(v) for k, v in value.items()}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.storage.UntypedStorage):
            return "storage"
        return str(self.gpu.seen(value))


def _output(op: str, out: Any) -> Any:
    return "value" if op == "aten._local_scalar_dense.default" else out


def _recorded(value: Any) -> Any:
    if isinstance(value, dict):
        if list(value) == ["t"]:
            shape, stride, dtype, device, *_ = value["t"]
            return ("tensor", shape, stride, dtype, device)
        return {k: _recorded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_recorded(v) for v in value]
    return value


def read_record(path: Path) -> dict[str, list[Call]]:
    """The calls of each program in a record."""
    programs: dict[str, list[Call]] = {}
    with gzip.open(path, "rt") as lines:
        next(lines)
        for line in lines:
            program = json.loads(line)
            programs[program["name"]] = [
                Call(
                    o["op"],
                    _recorded(o["args"]),
                    _recorded(o["kwargs"]),
                    _output(o["op"], _recorded(o["out"])),
                )
                for o in program["ops"]
                if not o["op"].startswith(NOISE)
            ]
    return programs


def trace(build: Callable[[str], Callable[[], Any]]) -> list[Call]:
    """The calls of one warm step of a program under the stand-in."""
    with standin(assume="zero") as gpu:
        step = build("cuda")
        for _ in range(WARM_UP_STEPS):
            step()
        recorder = Recorder(gpu)
        with gpu.watching(recorder):
            step()
    return recorder.calls


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the traced calls of a program compare with the recorded ones."""

    first_difference: str | None  # None: same overloads, shapes, dtypes, devices, arguments
    tensors: int
    equal_strides: int
    first_stride: str | None  # the first call with other strides


def compare(
    want: list[Call], got: list[Call], explain: Callable[[Call, Call], str | None] = lambda want, got: None
) -> Verdict:
    """Compare call by call; strides are counted over the calls that line up.

    `explain` names the known change between versions of torch by which `got` stands for `want`, if there is one.
    """
    first = first_stride = None
    tensors = equal = 0
    for i, (w, g) in enumerate(itertools.zip_longest(want, got)):
        if w is not None and g is not None and w.op != g.op and explain(w, g) is not None:
            continue
        if w is None or g is None or w.without_strides() != g.without_strides():
            first = f"call {i} of {len(want)} (traced {len(got)})\n    want {w}\n    got  {g}"
            break
        pairs = list(zip(w.tensors(), g.tensors(), strict=True))
        tensors += len(pairs)
        same = sum(a[2] == b[2] for a, b in pairs)
        equal += same
        if same < len(pairs) and first_stride is None:
            first_stride = f"call {i} has other strides\n    want {w}\n    got  {g}"
    return Verdict(first, tensors, equal, first_stride)


#: torchvision's ops that it describes as it is imported.
_TORCHVISION = torch.library.Library("torchvision", "FRAGMENT")


def import_torchvision() -> None:
    """Import torchvision, if it is there, beside a torch that its C++ library was not built for: the ops that the
    library would register, which no model of the record calls, are declared in its place."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for op in ("nms", "qnms"):
            _TORCHVISION.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


def load_programs(path: Path) -> ModuleType:
    """Import PROGRAMS.py by path."""
    import_torchvision()
    spec = importlib.util.spec_from_file_location("recorded_programs", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot import {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def counts(want: list[Call], got: list[Call]) -> str:
    """The overloads whose numbers differ, largest difference first."""
    difference = Counter(c.op for c in got)
    difference.subtract(Counter(c.op for c in want))
    rows = sorted(((n, op) for op, n in difference.items() if n), key=lambda row: -abs(row[0]))
    return ", ".join(f"{op} {n:+d}" for n, op in rows[:8])


def explained(torch_version: tuple[int, ...], want: Call, got: Call) -> str | None:
    """Why `got` may stand for `want` on a version of torch; None if it may not."""
    for since, before, after, reason in VERSION_DIFFERENCES:
        if torch_version >= since and (want.op, got.op) == (before, after):
            return reason
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--verbose", action="store_true", help="tracebacks of programs that stop")
    options = parser.parse_args(argv)

    record = read_record(options.record)
    tally: Counter[str] = Counter()
    tensors = equal = 0
    for program in load_programs(options.programs).suite():
        if options.only not in program.name:
            continue
        start = time.perf_counter()
        want = record[program.name]
        try:
            got = trace(program.build)
        except Exception as error:  # a program that stops is a result, not a reason to stop comparing
            tally["stopped"] += 1
            print(
                f"STOPPED   {program.name}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True
            )
            if options.verbose:
                traceback.print_exc()
            continue
        changes: Counter[str] = Counter()

        def explain(w: Call, g: Call, changes: Counter[str] = changes) -> str | None:
            reason = explained(TORCH, w, g)
            if reason is not None:
                changes[reason] += 1
            return reason

        verdict = compare(want, got, explain)
        tensors += verdict.tensors
        equal += verdict.equal_strides
        seconds = time.perf_counter() - start
        strides = f"strides {verdict.equal_strides}/{verdict.tensors}"
        if verdict.first_difference is None:
            tally["same"] += 1
            print(f"same      {program.name}: {len(want)} calls, {strides}, {seconds:.1f} s", flush=True)
            for reason, times in changes.items():
                print(f"    {times} calls differ by version: {reason}", flush=True)
            if options.verbose and verdict.first_stride:
                print(f"    {verdict.first_stride}", flush=True)
        else:
            tally["different"] += 1
            print(
                f"DIFFERENT {program.name}: {verdict.first_difference}\n    {counts(want, got)}", flush=True
            )
    print(
        f"torch {torch.__version__}: {tally['same']} same, {tally['different']} different, "
        f"{tally['stopped']} stopped; strides equal for {equal} of {tensors} tensors"
    )
    return int(tally["different"] + tally["stopped"] > 0)


if __name__ == "__main__":
    sys.exit(main())
