"""A mixture of experts of DeepSeek-V3's shape, with 8 experts a layer instead of 256, built from its config.

    pip install transformers
    optrace samples/deepseek_moe.py --train --out graph.svg

3 dense layers and 58 with experts, one sequence of 1,024 tokens; a training step is 28,000 calls and takes minutes to
record and to price.

**What the picture shows.** ``layers.0-2`` and ``layers.3-60`` stand apart, since they are not equal: the first have a
plain MLP, and the box says what they lack. Inside a layer with experts the router is a chain of small launches beside
the grouped matmuls.
"""

import torch

try:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs transformers (pip install transformers): {error}") from None


def model() -> DeepseekV3ForCausalLM:
    config = DeepseekV3Config(
        num_hidden_layers=61,
        first_k_dense_replace=3,
        n_routed_experts=8,
        num_experts_per_tok=4,
        n_group=4,
        topk_group=2,
        use_cache=False,
    )
    with torch.device("cuda"):  # pretended: nothing is allocated
        return DeepseekV3ForCausalLM(config)


def get_inputs(batch: int = 1) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 129280, (batch, 1024))
    return {"input_ids": tokens, "labels": tokens}
