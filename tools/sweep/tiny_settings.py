"""Settings that make the default configuration of any model type small.

Configurations of transformers name their sizes alike: `hidden_size`, `num_hidden_layers`, `vocab_size`, … Whichever
of these names a configuration has get the values below, in its sub-configurations too.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

#: Small values, and the names of the fields that get them.
_NAMES = {
    1: """
        n_shared_experts num_shared_experts moe_num_shared_experts num_nextn_predict_layers
        num_mtp_layers first_k_dense_replace
    """,
    2: """
        num_key_value_heads num_experts_per_tok moe_topk moe_k n_group topk_group
        num_global_key_value_heads t2u_encoder_layers t2u_decoder_layers speech_encoder_layers
        encoder_num_key_value_heads top_k_experts decoder_num_key_value_heads cross_num_key_value_heads
        num_kv_heads swa_num_key_value_heads num_residual_layers num_conv_pos_embedding_groups
        mamba_n_groups resampler_depth moe_top_k num_expert_groups
    """,
    4: """
        num_attention_heads num_heads n_head n_heads encoder_attention_heads decoder_attention_heads
        attention_heads encoder_num_attention_heads decoder_num_attention_heads num_hidden_layers
        num_layers n_layer n_layers depth speech_encoder_attention_heads t2u_encoder_attention_heads
        t2u_decoder_attention_heads layers encoder_layers decoder_layers num_encoder_layers
        num_decoder_layers encoder_num_layers decoder_num_layers encoder_num_hidden_layers
        decoder_num_hidden_layers num_experts num_local_experts n_routed_experts moe_num_experts
        kv_lora_rank q_lora_rank decoder_self_attention_heads decoder_cross_attention_heads
        cross_num_attention_heads index_n_heads linear_num_key_heads linear_num_value_heads
        linear_num_heads spatial_tuning_adapter_inplanes
    """,
    8: """
        head_dim d_kv dim_head d_head patch_size v_head_dim qk_rope_head_dim qk_nope_head_dim
        index_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim num_mel_bins
        global_head_dim swa_head_dim attention_head_dim num_queries num_filters codebook_dim
        query_pre_attn_scalar mamba_d_state ssm_state_size state_size mamba_chunk_size chunk_size
        index_topk feature_size resampler_n_latents latent_query_num mm_tokens_per_image
        num_query_tokens rotary_dim num_mel_attn_blocks qk_head_dim mamba_n_heads mamba_d_head
        context_size
    """,
    16: """
        image_size embedding_size_per_head num_conv_pos_embeddings max_target_positions num_negatives
        num_prefix_tokens
    """,
    32: """
        hidden_size d_model n_embd emb_dim embed_dim embedding_dim hidden_dim dim width embedding_size
        projection_dim encoder_hidden_size decoder_hidden_size encoder_embed_dim decoder_embed_dim
        encoder_hidden_dim out_hidden_size output_hidden_size projection_size text_hidden_size
        output_dim hidden_size_per_layer_input pooler_output_size image_text_hidden_size n_embed
        patch_embed_hidden_size backbone_hidden_size output_channels hidden_channels fpn_hidden_size
        mask_feature_size decoder_dim qformer_hidden_size cross_attention_hidden_size
        attention_hidden_size text_embed_dim vision_embed_dim audio_embed_dim
        multimodal_projector_hidden_size downsample_hidden_size vision_output_dim projector_hidden_size
        output_proj_dims project_dim reassemble_hidden_size fusion_hidden_size
    """,
    48: """
        intermediate_size d_ff dff ffn_dim encoder_ffn_dim decoder_ffn_dim d_inner n_inner
        ffn_hidden_size moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        intermediate_dim mlp_dim intermediate_size_mlp expert_ffn_hidden_size decoder_intermediate_size
        encoder_intermediate_size moe_shared_expert_intermediate_size dim_ff feed_forward_hidden_size
        encoder_feedforward_dim dim_feedforward speech_encoder_intermediate_size decoder_ffn_hidden_size
        ffn_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim
        memory_attention_feed_forward_hidden_size mtp_intermediate_size dense_intermediate_size
        alignment_intermediate_size
    """,
    64: """
        vocab_size max_position_embeddings n_positions n_ctx max_source_positions sliding_window
        max_seq_len text_vocab_size vocab_size_per_layer_input codebook_size t2u_vocab_size
        max_2d_position_embeddings t2u_max_position_embeddings num_embeddings audio_vocab_size
        entity_vocab_size num_position_embeddings
    """,
}
_SIZES = {name: size for size, names in _NAMES.items() for name in names.split()}

#: Lists keep their length.
_LISTS = {
    "depths": lambda n: [1] * n,
    "hidden_sizes": lambda n: [16 * 2**i for i in range(n)],
    "num_heads": lambda n: [2**i for i in range(n)],
    "num_attention_heads": lambda n: [2**i for i in range(n)],
    "conv_dim": lambda n: [16] * n,
    "embed_dim": lambda n: [16 * 2**i for i in range(n)],
    "image_size": lambda n: [16] * n,
}

#: Sizes that most configurations derive from others if they are left out; some do not.
_DERIVED = ("head_dim", "num_key_value_heads")

#: Ids that stand for inputs of other kinds must not occur in the random texts, whose ids are 5 to 59.
_MARKS = {"image": 60, "video": 61, "audio": 62}
_TOKEN = re.compile(r"_token_(id|index)$|^(pad|bos|eos)_index$")


def tiny_settings(config_class: type, **more: Any) -> dict[str, Any]:
    """Arguments of a configuration class that make its model small; those in `more` have the last word."""
    default = config_class()
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        value = _value(default, field.name)
        if _is_config(value):
            inner = tiny_settings(type(value), **more.pop(field.name, {}))
            settings[field.name] = {"model_type": value.model_type, **inner}
        elif (small := _small(field.name, value, field.default)) is not None:
            settings[field.name] = small
    if "kv_lora_rank" in settings and "num_key_value_heads" in settings:  # one key per head, from a shared latent
        settings["num_key_value_heads"] = _SIZES["num_attention_heads"]
    return {**settings, **more}


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a value that differs between layers
        return None


def _is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and dataclasses.is_dataclass(value)


def _small(name: str, value: Any, default: Any) -> Any:
    if _TOKEN.search(name):
        return _small_token(name, value)
    if isinstance(value, list | tuple) and name in _LISTS:
        return type(value)(_LISTS[name](len(value)))
    if name in _SIZES and _is_whole(value) and default is not None:
        return _SIZES[name]
    if name in _DERIVED and value is None:
        return _SIZES[name]
    return None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _small_token(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [2]
    if not isinstance(value, int) or value < 5:
        return None
    return _MARKS.get(name.split("_", maxsplit=1)[0], {"bos": 1, "eos": 2}.get(name[:3], 3))
