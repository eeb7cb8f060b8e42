"""The programs that a builder file makes, traced with real values on the CPU and run again as ``GraphModule``s.

    python -m tests.bridge.programs BUILDERS.py [--only NAMES] [--inductor NAMES] [--out FILE]

``BUILDERS.py`` defines ``suite()``, a list of programs with a ``name`` and ``build(device)``, which returns ``step()``. Each
is built small (batches, lengths, layers and vocabularies cut where they are known by name) and twice from one seed: one
is traced, the other runs with nothing watching. After a warm-up step, what eager returns and leaves behind (outputs,
gradients, parameters, buffers, optimizer state) is compared bit by bit with what the module does. One thread: with
several, torch's scatters add up in an order of their own, also in eager.

Programs in ``--inductor`` are compiled with Inductor's ``compile_fx`` too and compared within a tolerance.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.bridge.compiled import compiled_by_inductor
from tests.bridge.replay import Step, replayed

#: Thirty of the programs of the record of one H200: every kind of step, each architecture once.
NAMES = (
    "toy_small_8x64_f32_x16",
    "toy_mid_f32_x4",
    "mlp_train_b64_adamw",
    "mlp_train_b64_forloop",
    "mlp_train_b8192_fused",
    "lstm_train",
    "gru_infer_b1",
    "dlrm_infer_b2048",
    "gcn_train_100k_edges",
    "item_in_loop",
    "naive_attn_infer_bf16",
    "naive_attn_train_autocast",
    "tv_mobilenet_v3_large_infer_b1",
    "tv_efficientnet_b0_infer_b16",
    "tv_shufflenet_v2_x1_0_infer_b8",
    "tv_squeezenet1_1_infer_b8",
    "tv_resnet50_train_b64",
    "tv_mnasnet1_0_train_b16",
    "timm_deit_small_patch16_224_infer_b32",
    "timm_levit_192_train_b16_autocast",
    "timm_ghostnet_100_infer_b8",
    "timm_cait_xxs24_224_infer_b4",
    "hf_llama_s_prefill_b1_s512_bf16",
    "hf_llama_s_decode_b1_ctx512_bf16",
    "hf_gpt2_train_b8_s512_autocast",
    "hf_gpt2_decode_b32_ctx512_bf16",
    "hf_mixtral_s_train_b4_s256_bf16",
    "hf_gemma3_s_train_b4_s256_bf16",
    "hf_distilbert_infer_b1_s64",
    "unet_infer_b4_256",
)

#: Configurations of language models, by the names that transformers has for them.
_SMALLER = {"num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "vocab_size": 1024}
_BATCH, _LENGTH = 2, 64


def main(arguments: list[str]) -> int:
    """Print a line a program; the exit code says whether all came out the same."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("builders", type=Path)
    parser.add_argument("--only", default=",".join(NAMES), help="names, by commas")
    parser.add_argument("--inductor", default="", help="names of those to compile too, by commas")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="write the rows as JSON lines")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    wanted, compiled = given.only.split(","), given.inductor.split(",")
    programs = {program.name: program for program in load(given.builders, given.device).suite()}
    rows = []
    for name in wanted:
        row = look_at(name, programs[name].build, given.device, compile_it=name in compiled)
        rows.append(row)
        print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
        if given.out:
            given.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    good = sum(not row["failed"] for row in rows)
    print(f"{good} of {len(rows)} programs came out the same")
    return 0 if good == len(rows) else 1


def look_at(
    name: str, build: Callable[[str], Callable[[], Any]], device: str, *, compile_it: bool
) -> dict[str, Any]:
    """What came of one program."""
    start = time.monotonic()
    row: dict[str, Any] = {"name": name, "failed": ""}
    try:
        step, twin = built(build, device), built(build, device)
        torch.manual_seed(2)
        replay = replayed(step, twin, mode=device, device=device)
        replay.module.graph.lint()
        row |= {
            "calls": len(replay.trace.graph),
            "same_calls": replay.same_calls,
            "compared": len(replay.compared),
            "differ": len(replay.differ),
            "furthest": max(replay.differ.values(), default=0.0),
            "guards": len(replay.module.meta["optrace"].guards),
        }
        if not replay.same_calls or replay.differ:
            row["failed"] = ", ".join(list(replay.differ)[:3]) or "calls"
        if compile_it:
            row["inductor_of_tolerance"] = compiled_by_inductor(replay)
    except Exception as error:
        traceback.print_exc()
        row["failed"] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    row["seconds"] = round(time.monotonic() - start)
    return row


def built(build: Callable[[str], Callable[[], Any]], device: str) -> Step:
    """A program from seed 0, small, after one step."""
    torch.manual_seed(0)
    _shrink(build, set())
    with small_inputs():
        run = build(device)
    run()
    return Step.of(run)


def _shrink(function: Any, seen: set[int]) -> None:
    """Cut the model configurations that a builder's closure holds."""
    for cell in getattr(function, "__closure__", None) or ():
        value = cell.cell_contents
        if id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is dict and ("hidden_size" in value or not value):
            value.update(
                {key: size for key, size in _SMALLER.items() if key in value or not value.keys() - _SMALLER}
            )
        _shrink(value, seen)


@contextmanager
def small_inputs() -> Iterator[None]:
    """Batches and lengths of the tensors that are made inside are cut."""

    def cut(make: Callable[..., torch.Tensor], size_at: int) -> Callable[..., torch.Tensor]:
        def small(*args: Any, **kwargs: Any) -> torch.Tensor:
            args_list = list(args)
            if size_at and len(args[size_at]) == 2:
                args_list[size_at] = tuple(_cut(args_list[size_at], lengths=True))
            elif not size_at and len(args) > 2:
                args_list = list(_cut(args, lengths=len(args) == 3))
            return make(*args_list, **kwargs)

        return small

    before = torch.randn, torch.randint
    torch.randn, torch.randint = cut(torch.randn, 0), cut(torch.randint, 2)
    try:
        yield
    finally:
        torch.randn, torch.randint = before


def _cut(size: Any, *, lengths: bool) -> Iterator[int]:
    for place, n in enumerate(size):
        if place == 0 and len(size) > 1:
            yield min(n, _BATCH)
        elif place == 1 and lengths:
            yield min(n, _LENGTH)
        else:
            yield n


def load(path: Path, device: str) -> ModuleType:
    """The builder file as a module; on the CPU its autocast is the CPU's."""
    spec = importlib.util.spec_from_loader("builder_file", loader=None, origin=str(path))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    sys.modules["builder_file"] = module
    source = path.read_text().replace('torch.autocast("cuda"', f'torch.autocast("{device}"')
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
