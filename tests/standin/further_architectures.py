"""Further timm and transformers architectures traced with no GPU, forward and one training step each.

    python -m tests.standin.further_architectures [--only NAME] [--save FILE.json] [--seconds N]

Models are built from small configs with random weights; nothing is downloaded. Prints a line an architecture: calls
of the forward pass and of the training step (AdamW), or what stopped it. Needs timm and transformers. Not a test: it
takes minutes. Exit status 1 if an architecture stops.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from optrace.tracing import open_session

Inputs = Callable[[str], dict[str, Tensor]]

_TIMM = """
    caformer_s18 coatnet_nano_rw_224 convmixer_768_32 convnextv2_nano crossvit_tiny_240 davit_tiny densenet121 dpn68
    efficientformer_l1 fastvit_t8 gmlp_s16_224 hiera_tiny_224 inception_v3 lcnet_050 mambaout_femto mixer_b16_224
    mobilenetv4_conv_small mobilevitv2_050 nfnet_l0 pit_ti_224 pvt_v2_b0 regnetz_b16 resmlp_12_224 resnetv2_50
    seresnet50 skresnet18 starnet_s1 swin_tiny_patch4_window7_224 tiny_vit_5m_224 twins_pcpvt_small visformer_tiny
    volo_d1_224 xcit_nano_12_p16_224
"""

WIDTH = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
DECODER = {**WIDTH, "intermediate_size": 256, "num_key_value_heads": 2}
ENCODER = {**WIDTH, "intermediate_size": 256}
EXPERTS = {**DECODER, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2}
T5_LIKE = {
    "d_model": 128,
    "d_kv": 32,
    "d_ff": 256,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 1000,
    "decoder_start_token_id": 0,
}
BART_LIKE = {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "vocab_size": 1000,
}

#: Model class, config class, config, kind of inputs.
TRANSFORMERS: tuple[tuple[str, str, Mapping[str, Any], str], ...] = (
    ("AlbertModel", "AlbertConfig", {**ENCODER, "embedding_size": 64}, "tokens"),
    ("BartForConditionalGeneration", "BartConfig", BART_LIKE, "pair"),
    ("BertForMaskedLM", "BertConfig", ENCODER, "labelled"),
    ("BloomForCausalLM", "BloomConfig", {"hidden_size": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000}, "labelled"),
    ("CodeGenForCausalLM", "CodeGenConfig", {"n_embd": 128, "n_layer": 2, "n_head": 4, "rotary_dim": 16, "vocab_size": 1000}, "labelled"),
    ("CohereForCausalLM", "CohereConfig", DECODER, "labelled"),
    ("DebertaV2Model", "DebertaV2Config", {**ENCODER, "pos_att_type": ["c2p", "p2c"], "relative_attention": True}, "masked"),
    ("Dinov2Model", "Dinov2Config", {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}, "image"),
    ("ElectraModel", "ElectraConfig", ENCODER, "tokens"),
    ("FalconForCausalLM", "FalconConfig", WIDTH, "labelled"),
    ("FNetModel", "FNetConfig", {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 256, "vocab_size": 1000, "use_tpu_fourier_optimizations": False}, "tokens"),
    ("Gemma2ForCausalLM", "Gemma2Config", {**DECODER, "head_dim": 32}, "labelled"),
    ("Glm4ForCausalLM", "Glm4Config", {**DECODER, "head_dim": 32, "pad_token_id": 0}, "labelled"),
    ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000}, "labelled"),
    ("GPTNeoForCausalLM", "GPTNeoConfig", {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "vocab_size": 1000}, "labelled"),
    ("GPTNeoXForCausalLM", "GPTNeoXConfig", ENCODER, "labelled"),
    ("GptOssForCausalLM", "GptOssConfig", {**DECODER, "head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2}, "labelled"),
    ("GraniteForCausalLM", "GraniteConfig", DECODER, "labelled"),
    ("Mamba2ForCausalLM", "Mamba2Config", {"hidden_size": 128, "num_hidden_layers": 2, "head_dim": 32, "num_heads": 8, "n_groups": 1, "state_size": 16, "vocab_size": 1000}, "labelled"),
    ("MambaForCausalLM", "MambaConfig", {"hidden_size": 128, "num_hidden_layers": 2, "vocab_size": 1000}, "labelled"),
    ("MistralForCausalLM", "MistralConfig", DECODER, "labelled"),
    ("ModernBertModel", "ModernBertConfig", {**ENCODER, "pad_token_id": 0}, "tokens"),
    ("Olmo2ForCausalLM", "Olmo2Config", DECODER, "labelled"),
    ("OlmoeForCausalLM", "OlmoeConfig", {**DECODER, "num_experts": 4, "num_experts_per_tok": 2}, "labelled"),
    ("OPTForCausalLM", "OPTConfig", {**WIDTH, "ffn_dim": 256, "word_embed_proj_dim": 128}, "labelled"),
    ("Phi3ForCausalLM", "Phi3Config", {**DECODER, "pad_token_id": 0}, "labelled"),
    ("Qwen2ForCausalLM", "Qwen2Config", DECODER, "labelled"),
    ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**EXPERTS, "head_dim": 32}, "labelled"),
    ("RobertaForCausalLM", "RobertaConfig", {**ENCODER, "is_decoder": True}, "labelled"),
    ("SegformerModel", "SegformerConfig", {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1]}, "image"),
    ("SiglipVisionModel", "SiglipVisionConfig", {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}, "image"),
    ("StableLmForCausalLM", "StableLmConfig", DECODER, "labelled"),
    ("Starcoder2ForCausalLM", "Starcoder2Config", DECODER, "labelled"),
    ("T5ForConditionalGeneration", "T5Config", T5_LIKE, "pair"),
    ("ViTModel", "ViTConfig", {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}, "image"),
    ("WhisperForConditionalGeneration", "WhisperConfig", {**BART_LIKE, "max_source_positions": 100, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}, "mel"),
    ("XLNetLMHeadModel", "XLNetConfig", {"d_model": 128, "n_layer": 2, "n_head": 4, "d_inner": 256, "vocab_size": 1000}, "labelled"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model and its inputs, both built on a device."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Inputs


def _timm(name: str) -> Architecture:
    def make() -> nn.Module:
        import timm  # type: ignore[import-not-found, unused-ignore]

        model: nn.Module = timm.create_model(name, pretrained=False)
        return model

    def inputs(device: str) -> dict[str, Tensor]:
        from timm.models import get_pretrained_cfg  # type: ignore[import-not-found, unused-ignore]

        size = get_pretrained_cfg(name).input_size
        return {"x": torch.randn(2, *size, device=device)}

    return Architecture(f"timm {name}", make, inputs)


def _tokens(device: str) -> Tensor:
    return torch.randint(3, 1000, (2, 32), device=device)


def _labelled(device: str) -> dict[str, Tensor]:
    tokens = _tokens(device)
    return {"input_ids": tokens, "labels": tokens}


def _masked(device: str) -> dict[str, Tensor]:
    """With no mask, transformers looks for padding among the tokens, whose values are not known."""
    tokens = _tokens(device)
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


INPUTS: Mapping[str, Inputs] = {
    "masked": _masked,
    "tokens": lambda device: {"input_ids": _tokens(device)},
    "labelled": _labelled,
    "pair": _labelled,
    "image": lambda device: {"pixel_values": torch.randn(2, 3, 224, 224, device=device)},
    "mel": lambda device: {
        "input_features": torch.randn(2, 80, 200, device=device),
        "labels": _tokens(device),
    },
}


def _transformers(model: str, config: str, settings: Mapping[str, Any], kind: str) -> Architecture:
    def make() -> nn.Module:
        import transformers  # type: ignore[import-not-found, unused-ignore]

        made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made

    return Architecture(f"transformers {model}", make, INPUTS[kind])


def architectures() -> list[Architecture]:
    """All of them, in the order of the table."""
    return [*map(_timm, _TIMM.split()), *(_transformers(*row) for row in TRANSFORMERS)]


@dataclass(frozen=True, slots=True)
class Steps:
    """A model on a device; each method runs it once, as often as wanted."""

    model: nn.Module
    given: dict[str, Tensor]
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(cls, architecture: Architecture, device: str) -> Steps:
        with torch.device(device):
            model = architecture.make()
        model = model.to(device)
        return cls(model, architecture.inputs(device), torch.optim.AdamW(model.parameters(), lr=1e-4))

    def forward(self) -> None:
        """Inference."""
        self.model.eval()
        with torch.no_grad():
            self.model(**self.given)

    def training(self) -> None:
        """Loss, backward, optimizer step."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        _loss(self.model(**self.given)).backward()  # type: ignore[no-untyped-call, unused-ignore]
        self.optimizer.step()


KINDS = ("forward", "training")


def _loss(out: Any) -> Tensor:
    loss = getattr(out, "loss", None)
    if loss is not None:
        return loss  # type: ignore[no-any-return]
    leaves = torch.utils._pytree.tree_leaves(dict(out) if isinstance(out, Mapping) else out)
    first: Tensor = next(t for t in leaves if isinstance(t, Tensor) and t.requires_grad)
    return first.float().square().mean()


@dataclass(frozen=True, slots=True)
class Row:
    """What came of an architecture: calls of each step, or why it stopped."""

    name: str
    forward: int | None
    training: int | None
    seconds: float
    stopped: str | None


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after `seconds`."""

    def late(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def trace(number: int, seconds: int) -> Row:
    """Both steps of an architecture under the stand-in; unknown values are errors."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    architecture, counts, doing = architectures()[number], dict.fromkeys(KINDS), "building"
    stopped = None
    start = time.perf_counter()
    try:
        with limited(seconds), open_session("fake") as session:
            steps = Steps.of(architecture, "cuda")
            for doing in KINDS:
                before = len(session.graph)
                with session.recording():
                    getattr(steps, doing)()
                counts[doing] = len(session.graph) - before
    except Exception as error:  # an architecture that stops is a result
        lines = str(error).splitlines() or [""]
        stopped = f"{doing}: {type(error).__name__}: {lines[0][:160]}"
    return Row(architecture.name, *counts.values(), round(time.perf_counter() - start, 1), stopped)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="architectures whose name contains this")
    parser.add_argument("--save", type=Path, help="write the table as JSON")
    parser.add_argument("--seconds", type=int, default=180, help="time limit of an architecture")
    options = parser.parse_args(argv)

    chosen = [i for i, a in enumerate(architectures()) if options.only in a.name]
    rows: list[Row] = []
    with ProcessPoolExecutor(2) as pool:
        for row in pool.map(trace, chosen, [options.seconds] * len(chosen)):
            rows.append(row)
            calls = row.stopped or f"{row.forward:6} {row.training:6} calls"
            print(f"{row.name:46} {calls} {row.seconds:6.1f} s", flush=True)
    if options.save:
        options.save.write_text(json.dumps({"torch": torch.__version__, "rows": [asdict(r) for r in rows]}))
    stopped = [row for row in rows if row.stopped]
    print(f"torch {torch.__version__}: {len(rows) - len(stopped)} of {len(rows)} traced")
    return int(bool(stopped))


if __name__ == "__main__":
    sys.exit(main())
