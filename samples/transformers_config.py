"""A model of the transformers library, built from its config: no weights are downloaded.

    pip install transformers
    optrace samples/transformers_config.py --out graph.svg --dtype bf16
    optrace samples/transformers_config.py --out graph.svg --dtype bf16 --train
    optrace samples/transformers_config.py --out graph.svg --depth 3

A Llama of 4 layers and 512 features, reading 2 x 128 tokens.

**What the picture shows.** ``model.layers.0`` to ``model.layers.3`` as clusters of one shape. RMSNorm is six
kernels where one would do, rotary embedding another dozen small ones, and casts to fp32 and back stand
around both: this is where eager transformers spends its launches. ``--depth 3`` folds each layer into one box.
With ``--train`` the loss is the model's own (it is given labels).
"""

import torch

try:
    from transformers import LlamaConfig, LlamaForCausalLM
except ModuleNotFoundError as error:
    raise SystemExit(f"this sample needs transformers (pip install transformers): {error}") from None


def model() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000,
            hidden_size=512,
            intermediate_size=1536,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            use_cache=False,
        )
    )


def get_inputs(batch: int = 2) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 32000, (batch, 128))
    return {"input_ids": tokens, "labels": tokens}
