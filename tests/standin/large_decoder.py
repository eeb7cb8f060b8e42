"""A Llama of 70 billion parameters traced in fake mode: seconds, calls and memory of each part.

    python -m tests.standin.large_decoder

Needs transformers. `test_size` does the same with less, in seconds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found, unused-ignore]

from optrace.tracing import Session, open_session

CONFIG = {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "dtype": torch.bfloat16,
}
TOKENS = 2048


@contextmanager
def timed(what: str, session: Session) -> Iterator[None]:
    """Print what it took, and the largest memory of the process so far."""
    calls, start = len(session.graph), time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2  # KiB on Linux
    seconds = time.perf_counter() - start
    print(
        f"{what:14} {seconds:7.1f} s {len(session.graph) - calls:7} calls, peak {peak:5.2f} GiB", flush=True
    )


def main() -> None:
    """Build the model; record a prefill, a decoding step and a training step, one after the other."""
    with open_session("fake") as session:
        with timed("build", session), torch.device("cuda"):
            model = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.bfloat16)
        count = sum(p.numel() for p in model.parameters())
        print(f"{count / 1e9:.1f} billion parameters")
        tokens = torch.ones(1, TOKENS, dtype=torch.int64, device="cuda")
        with timed("prefill", session), session.recording(), torch.no_grad():
            cache = model(tokens, use_cache=True).past_key_values
        with timed("decode", session), session.recording(), torch.no_grad():
            model(tokens[:, :1], past_key_values=cache, use_cache=True)
        del cache
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        with timed("training step", session), session.recording():
            loss = model(tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
