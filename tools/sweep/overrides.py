"""Settings of the model types whose sizes depend on one another in ways of their own."""

from __future__ import annotations

from typing import Any


def _rotated(*sections: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(sections)}}


def _text(**settings: Any) -> dict[str, Any]:
    return {"text_config": settings}


_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 16,
    "depths": [1, 1],
    "num_heads": [2, 4],
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 32, "frequency_stride": 4, "time_stride": 4},
    "bailing_hybrid": {"layer_group_size": 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "bros": {"hidden_size": 64},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "donut-swin": _SWIN,
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 64, "mask_token_id": 3, "pad_token_id": 1},
    "falcon_h1": {"mamba_d_ssm": 64},
    "gemma3n_text": {"num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 2},
    "glm46v": _text(**_rotated(2, 1, 1)),
    "glm4v": _text(**_rotated(2, 1, 1)),
    "glm4v_moe": _text(**_rotated(1, 1, 0)),
    "glm4v_moe_text": _rotated(1, 1, 0),
    "glm4v_text": _rotated(2, 1, 1),
    "glm_image": _text(**_rotated(2, 1, 1)),
    "glm_image_text": _rotated(2, 1, 1),
    "glm_ocr": _text(**_rotated(2, 1, 1)),
    "glm_ocr_text": _rotated(2, 1, 1),
    "glmga": _text(**_rotated(2, 1, 1)),
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 5},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "hiera": {"image_size": [64, 64]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"coordinate_size": 5, "shape_size": 6, "input_size": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "lilt": {"hidden_size": 48, "channel_shrink_ratio": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "maskformer-swin": _SWIN,
    "paddleocr_vl": _text(**_rotated(2, 1, 1)),
    "qwen2_5_omni_thinker": _text(**_rotated(2, 1, 1)),
    "qwen2_5_vl": _text(**_rotated(2, 1, 1)),
    "qwen2_5_vl_text": _rotated(2, 1, 1),
    "qwen2_vl": _text(**_rotated(2, 1, 1)),
    "qwen2_vl_text": _rotated(2, 1, 1),
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [3, 4], "attn_layers": ["local", "lsh"] * 2},
    "swin": _SWIN,
    "swin2sr": {**_SWIN, "upscale": 1},
    "swinv2": _SWIN,
    "xmod": {"default_language": "en_XX"},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "adapter_rank": 4},
    "zaya": {"num_experts_per_tok": 1},
}
