"""A Llama of 70 billion parameters, built from its config: no weights are downloaded, none are held.

    pip install transformers
    optrace samples/llama_70b.py --train --dtype bf16 --out graph.svg
    optrace samples/llama_70b.py --train --dtype bf16 --out graph.svg --expand LlamaForCausalLM.model.layers.79

80 layers of 8,192 features, one sequence of 2,048 tokens; a training step is 22,000 calls and takes minutes to
record and to price.

**What the picture shows.** Each phase is read from top to bottom. The 80 equal layers are one box, ``layers.0-79
x80``, and what is in it was counted over all of them; the backward pass has them as ``layers.79-0``. Where most of the
wall clock goes, in the MLPs, modules are opened down to their matmuls; the rest is one node a module. ``--expand``
draws one layer apart from the others and opens all of it.
"""

import torch

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs transformers (pip install transformers): {error}") from None


def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        use_cache=False,
    )
    with torch.device("cuda"):  # pretended: nothing is allocated
        return LlamaForCausalLM(config)


def get_inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 128256, (batch, 2048))
    return {"input_ids": tokens, "labels": tokens}
