"""Tiny models with random weights, one per architecture, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

_N = 12
_SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
_TEXT = {**_SMALL, "vocab_size": 64, "max_position_embeddings": 64}
_LLAMA = {
    **_TEXT,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class Case:
    """How to make a model, and which part of its attention is where among the eager outputs."""

    model: str
    config: str
    settings: dict[str, Any] | Callable[[], dict[str, Any]]
    parts: dict[str | None, str] = field(default_factory=lambda: {None: "attentions"})
    read: Callable[[], dict[str, Any]] = lambda: {"input_ids": _ids()}
    implementation: str | None = None

    def build(self, implementation: str | None = None) -> torch.nn.Module:
        import transformers

        implementation = implementation or self.implementation
        settings = self.settings() if callable(self.settings) else self.settings
        config = getattr(transformers, self.config)(**settings)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            options = {} if implementation is None else {"attn_implementation": implementation}
            model = getattr(transformers, self.model)._from_config(config, **options).eval()
            # random weights at their usual size give nearly uniform attention, in which errors hide
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim > 1:
                        parameter.normal_(0, 0.25)
                    elif parameter.numel() == 4:  # sinks
                        parameter.normal_(0, 1)
        return model


def _ids(n: int = _N, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 60, (2, n), generator=torch.Generator().manual_seed(seed))


def _pixels() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))}


def _square() -> dict[str, Any]:
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}


def _two_texts() -> dict[str, Any]:
    return {"input_ids": _ids(), "decoder_input_ids": _ids(7, seed=1)}


def _audio() -> dict[str, Any]:
    features = torch.randn(2, 8, 20, generator=torch.Generator().manual_seed(0))
    return {"input_features": features, "decoder_input_ids": _ids(7, seed=1)}


_THREE: dict[str | None, str] = {
    "encoder": "encoder_attentions",
    "decoder": "decoder_attentions",
    "cross": "cross_attentions",
}
_GPT2 = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

REGISTRY = {
    "bert": Case("BertModel", "BertConfig", _TEXT),
    "gpt2": Case("GPT2Model", "GPT2Config", _GPT2),
    "vit": Case("ViTModel", "ViTConfig", {**_SMALL, "image_size": [16, 24], "patch_size": 8}, read=_pixels),
    "llama": Case("LlamaModel", "LlamaConfig", _LLAMA),
    "mistral": Case("MistralModel", "MistralConfig", {**_LLAMA, "sliding_window": 5}),
    "t5": Case(
        "T5Model",
        "T5Config",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 64,
            "decoder_start_token_id": 0,
        },
        _THREE,
        _two_texts,
    ),
    "bart": Case("BartModel", "BartConfig", {**_BART, "max_position_embeddings": 64}, _THREE, _two_texts),
    "opt": Case(
        "OPTModel",
        "OPTConfig",
        {
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": 64,
            "max_position_embeddings": 64,
            "word_embed_proj_dim": 32,
        },
    ),
    "minicpm3": Case(
        "MiniCPM3Model",
        "MiniCPM3Config",
        {
            **{name: value for name, value in _LLAMA.items() if name != "head_dim"},
            "num_key_value_heads": 4,
            "q_lora_rank": 4,
            "kv_lora_rank": 4,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "albert": Case("AlbertModel", "AlbertConfig", {**_TEXT, "embedding_size": 16}),
    "qwen3": Case("Qwen3Model", "Qwen3Config", _LLAMA),
    "gemma2": Case("Gemma2Model", "Gemma2Config", {**_LLAMA, "sliding_window": 5, "attn_logit_softcapping": 2.0}),
    "gemma3": Case(
        "Gemma3TextModel", "Gemma3TextConfig", {**_LLAMA, "sliding_window": 5, "sliding_window_pattern": 2}
    ),
    "whisper": Case(
        "WhisperModel",
        "WhisperConfig",
        {
            **_BART,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "max_target_positions": 16,
            "suppress_tokens": None,
        },
        _THREE,
        _audio,
    ),
    "clip": Case(
        "CLIPVisionModel", "CLIPVisionConfig", {**_SMALL, "image_size": 16, "patch_size": 8}, read=_square
    ),
    "dinov2": Case("Dinov2Model", "Dinov2Config", {**_SMALL, "image_size": 16, "patch_size": 8}, read=_square),
    "modernbert": Case(
        "ModernBertModel",
        "ModernBertConfig",
        {
            **_TEXT,
            "local_attention": 6,
            "global_attn_every_n_layers": 2,
            "pad_token_id": 0,
            "cls_token_id": 1,
            "bos_token_id": 1,
            "sep_token_id": 2,
            "eos_token_id": 2,
        },
    ),
    "gpt_neox": Case("GPTNeoXModel", "GPTNeoXConfig", {**_TEXT, "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_oss": Case(
        "GptOssModel",
        "GptOssConfig",
        {**_LLAMA, "sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "beit": Case(
        "BeitModel",
        "BeitConfig",
        {**_SMALL, "image_size": 16, "patch_size": 8, "use_relative_position_bias": True},
        read=_square,
    ),
}

WATCHED = {
    "mpnet": Case("MPNetModel", "MPNetConfig", _TEXT),
    "gptj": Case("GPTJModel", "GPTJConfig", {**_GPT2, "rotary_dim": 4}),
    "bloom": Case("BloomModel", "BloomConfig", {"hidden_size": 32, "n_layer": 3, "n_head": 4, "vocab_size": 64}),
    "mpt": Case("MptModel", "MptConfig", {"d_model": 32, "n_layers": 3, "n_heads": 4, "vocab_size": 64}),
    "falcon": Case(
        "FalconModel",
        "FalconConfig",
        {
            "alibi": True,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "vocab_size": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        implementation="eager",
    ),
    "xlnet": Case(
        "XLNetModel",
        "XLNetConfig",
        {"d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, "vocab_size": 64},
    ),
    "deberta_v2": Case(
        "DebertaV2Model",
        "DebertaV2Config",
        {**_TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    ),
}

ALL = {**REGISTRY, **WATCHED}


def _long() -> dict[str, Any]:
    return {"input_ids": _ids(64)}


def _text_and_image() -> dict[str, Any]:
    ids = torch.tensor([[1, *[63] * 4, *range(5, 12)]])
    return {"input_ids": ids, "pixel_values": _square()["pixel_values"][:1]}


def _llava() -> dict[str, Any]:
    import transformers

    vision = transformers.CLIPVisionConfig(**_SMALL, image_size=16, patch_size=8)
    text = transformers.LlamaConfig(**_LLAMA)
    return {"vision_config": vision, "text_config": text, "image_token_index": 63, "vision_feature_layer": -1}


_HYBRID = {**_LLAMA, "num_hidden_layers": 4}

#: Families that change themselves when they run, that attend in windows or bands, or that have several modalities.
UNUSUAL = {
    "big_bird": Case(
        "BigBirdModel",
        "BigBirdConfig",
        {
            **_TEXT,
            "max_position_embeddings": 128,
            "attention_type": "block_sparse",
            "block_size": 4,
            "num_random_blocks": 1,
            "sep_token_id": 3,
        },
        read=_long,
    ),
    "xglm": Case(
        "XGLMModel",
        "XGLMConfig",
        {
            "d_model": 32,
            "ffn_dim": 48,
            "num_layers": 3,
            "attention_heads": 4,
            "vocab_size": 64,
            "max_position_embeddings": 64,
        },
    ),
    "convbert": Case("ConvBertModel", "ConvBertConfig", {**_TEXT, "embedding_size": 32, "head_ratio": 2}),
    "prophetnet": Case(
        "ProphetNetModel",
        "ProphetNetConfig",
        {
            "hidden_size": 32,
            "encoder_ffn_dim": 48,
            "num_encoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "decoder_ffn_dim": 48,
            "num_decoder_layers": 3,
            "num_decoder_attention_heads": 4,
            "vocab_size": 64,
            "max_position_embeddings": 64,
        },
        _THREE,
        _two_texts,
    ),
    "diffllama": Case("DiffLlamaModel", "DiffLlamaConfig", _LLAMA),
    "llava": Case(
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        _llava,
        {"language_model": "attentions", "vision_tower": ""},
        _text_and_image,
    ),
    "funnel": Case(
        "FunnelModel",
        "FunnelConfig",
        {"vocab_size": 64, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48},
    ),
    "longformer": Case(
        "LongformerModel",
        "LongformerConfig",
        {**_TEXT, "max_position_embeddings": 80, "attention_window": 4, "pad_token_id": 0, "sep_token_id": 3},
    ),
    "led": Case(
        "LEDModel",
        "LEDConfig",
        {
            **_BART,
            "attention_window": 4,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
        _THREE,
        _two_texts,
    ),
    "jamba": Case(
        "JambaModel",
        "JambaConfig",
        {
            **_HYBRID,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "hiera": Case(
        "HieraModel",
        "HieraConfig",
        {
            "image_size": [32, 32],
            "patch_size": [7, 7],
            "patch_stride": [4, 4],
            "patch_padding": [3, 3],
            "embed_dim": 8,
            "depths": [1, 1],
            "num_heads": [1, 2],
            "masked_unit_size": [4, 4],
            "query_stride": [2, 2],
            "num_query_pool": 1,
        },
        read=lambda: {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))},
    ),
}
