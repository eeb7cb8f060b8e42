"""What Inductor itself plans for recorded programs, beside what optrace predicts. No GPU is needed.

    python -m tests.diagnosis.inductor_plan RECORD [TEXT]

replays the recorded calls of each inference program with TEXT in its name into an FX graph of fake CUDA tensors, runs
Inductor's own passes, lowering and scheduler on it, and counts generated kernels and library calls. It stops before
anything is compiled. Needs torch 2.11 built for CUDA, with triton; it reaches into Inductor's internals. Padding of
products is off, since Inductor decides that by running them.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._inductor.config as inductor_config
import torch._inductor.fx_passes.joint_graph as joint_graph
from torch._dynamo.device_interface import CudaInterface
from torch._functorch._aot_autograd.functional_utils import to_fun  # noqa: F401 - registers what functionalize needs
from torch._guards import TracingContext, tracing
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _triton

from optrace.cost.profiles import pricing
from optrace.diagnosis.fusion import fuse
from optrace.measuring.record import read_machine, read_runs
from optrace.report import report


class _H200:
    """What Inductor asks of the device."""

    name = "NVIDIA H200"
    major, minor = 9, 0
    multi_processor_count = 132
    max_threads_per_multi_processor = 2048
    regs_per_multiprocessor = 65536
    warp_size = 32
    total_memory = 150_109_880_320
    L2_cache_size = 62_914_560
    shared_memory_per_block_optin = 232_448
    shared_memory_per_multiprocessor = 233_472


def _pretend() -> None:
    """Answers in the place of a driver."""
    for target in (CudaInterface, CudaInterface.Worker):
        target.get_device_properties = staticmethod(lambda _device=None: _H200)
        target.current_device = staticmethod(lambda: 0)
    CudaInterface.is_available = staticmethod(lambda: True)
    CudaInterface.get_compute_capability = staticmethod(lambda _device=None: 90)
    CudaInterface.is_triton_capable = staticmethod(lambda _device=None: True)
    CudaInterface.get_raw_stream = staticmethod(lambda _device: 0)
    torch.cuda.get_device_properties = lambda _device=None: _H200
    torch.cuda.get_device_capability = lambda _device=None: (9, 0)
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1
    for name, answer in (
        ("has_triton", True),
        ("has_triton_package", True),
        ("triton_hash_with_backend", ""),
    ):
        setattr(_triton, name, lambda answer=answer: answer)
    inductor_config.shape_padding = False
    inductor_config.fx_graph_cache = False
    inductor_config.compile_threads = 1


_DTYPES = {name: item for name, item in vars(torch).items() if isinstance(item, torch.dtype)}
_PLAIN = {f"torch.{name}": item for name, item in vars(torch).items() if isinstance(item, torch.dtype)} | {
    f"torch.{name}": getattr(torch, name)
    for name in ("strided", "contiguous_format", "channels_last", "preserve_format", "channels_last_3d")
}

Row = dict[str, Any]


def _tensors(value: Any) -> Iterator[list[Any]]:
    """The tensors of a recorded argument."""
    if isinstance(value, dict):
        if "t" in value:
            yield value["t"]
        else:
            yield from _tensors(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _tensors(item)


def _outside(row: Row) -> dict[int, list[Any]]:
    """The first look at each storage that stood before the step."""
    known: set[int] = set()
    found: dict[int, list[Any]] = {}
    for call in row["ops"]:
        for tensor in _tensors([call["args"], call["kwargs"]]):
            if tensor[4] not in known:
                found[tensor[4]] = tensor
                known.add(tensor[4])
        known.update(tensor[4] for tensor in _tensors(call["out"]))
    return found


def _input(tensor: list[Any]) -> torch.Tensor:
    shape, stride, dtype, device, _, nbytes, offset = tensor
    place = "cuda:0" if device.startswith("cuda") else "cpu"
    kind = _DTYPES[dtype]
    if not offset:
        return torch.empty_strided(shape, stride or [0] * len(shape), dtype=kind, device=place)
    whole = torch.empty(nbytes // kind.itemsize, dtype=kind, device=place)
    return whole.as_strided(shape, stride, offset)


def _replay(row: Row, outside: dict[int, list[Any]]) -> Callable[..., torch.Tensor]:
    """The recorded calls as a function of what stood before them; it gives what the last call gave."""

    def key(tensor: list[Any]) -> tuple[Any, ...]:
        return (tensor[4], tuple(tensor[0]), tuple(tensor[1] or ()), tensor[6], tensor[2])

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        values = {key(tensor): given for tensor, given in zip(outside.values(), inputs, strict=True)}
        first = dict(zip(outside, inputs, strict=True))
        result = inputs[0]

        def get(value: Any) -> Any:
            if isinstance(value, dict):
                if "t" not in value:
                    return {name: get(item) for name, item in value.items()}
                tensor = value["t"]
                if key(tensor) not in values:
                    values[key(tensor)] = first[tensor[4]].as_strided(tensor[0], tensor[1], tensor[6])
                return values[key(tensor)]
            if isinstance(value, list):
                return [get(item) for item in value]
            if isinstance(value, str):
                if re.fullmatch(r"cuda(:\d+)?|cpu", value):
                    return torch.device("cpu" if value == "cpu" else "cuda:0")
                return _PLAIN.get(value, value)
            return value

        def put(value: Any, given: Any) -> None:
            nonlocal result
            if isinstance(value, dict) and "t" in value:
                values[key(value["t"])] = result = given
                first.setdefault(value["t"][4], given)
            elif isinstance(value, list) and isinstance(given, list | tuple):
                for part, item in zip(value, given, strict=True):
                    put(part, item)

        for call in row["ops"]:
            if call["op"].startswith(("prim.", "profiler.")):
                continue
            namespace, _, rest = call["op"].partition(".")
            packet, _, overload = rest.rpartition(".")
            args = get(call["args"])
            if packet == "lift_fresh":
                put(call["out"], args[0])
                continue
            function = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
            put(call["out"], function(*args, **get(call["kwargs"])))
        return result

    return run


def plan(row: Row) -> tuple[int, int]:
    """Generated kernels and library calls that Inductor plans for the recorded calls."""
    outside = _outside(row)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        inputs = [_input(tensor) for tensor in outside.values()]
        replay = functionalize(_replay(row, outside), remove="mutations")
        module = make_fx(replay, decomposition_table=select_decomp_table())(*inputs)
    module.graph.eliminate_dead_code()
    # Folding of constants would make tensors on the device.
    with (
        patch.object(joint_graph, "constant_fold_uniform_value", lambda _module: None),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
        V.set_debug_handler(DebugContext()),
    ):
        module = joint_graph.joint_graph_passes(module)
        view_to_reshape(module)
        post_grad_passes(module, is_inference=True)
        lowered = GraphLowering(module, example_inputs=inputs, is_inference=True)
        with V.set_graph_handler(lowered), V.set_extern_kernel_nodes([]):
            lowered.run(*inputs)
            lowered.init_wrapper_code()
            lowered._update_scheduler()
            nodes = lowered.scheduler.nodes
    kinds = [type(node).__name__ for node in nodes]
    parts = sum(type(getattr(node, "node", None)).__name__ == "MultiOutput" for node in nodes)
    return kinds.count("SchedulerNode") + kinds.count("FusedSchedulerNode"), kinds.count(
        "ExternKernelSchedulerNode"
    ) - parts


def main(record: Path, text: str = "") -> None:
    _pretend()
    priced_for = pricing(read_machine(record).device)
    lines = {json.loads(line)["name"]: line for line in _lines(record)[1:]}
    for run in read_runs(record):
        line = lines[run.name]
        if text not in run.name or "_backward" in line or "_foreach" in line or "_local_scalar" in line:
            continue
        steps = [step for step in fuse(report(run.graph, priced_for).priced).steps if step.work.launches]
        regions = sum(step.region for step in steps)
        try:
            generated, library = plan(json.loads(line))
        except Exception as error:  # an op that Inductor does not take, or a driver that is asked after all
            print(f"{run.name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        print(
            f"{run.name}: generated ~{regions} / {generated}, library ~{len(steps) - regions} / {library}",
            flush=True,
        )


def _lines(record: Path) -> list[str]:
    data = record.read_bytes()
    return (gzip.decompress(data) if record.suffix == ".gz" else data).decode().splitlines()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
