"""A small configuration of any family: the sizes that configurations share, made small alike."""

from __future__ import annotations

import re
from typing import Any

from .overrides import OVERRIDES

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 99, 32, 8

_SIZES: dict[str, int] = {
    name: size
    for size, names in [
        (
            WIDTH,
            "hidden_size d_model n_embd hidden_dim dim embed_dim embedding_size projection_dim "
            "d_embed emb_dim embed_dim_per_head_total encoder_hidden_size decoder_hidden_size "
            "cross_attention_hidden_size proj_hidden_size out_hidden_size encoder_embed_dim "
            "decoder_embed_dim vision_hidden_size text_hidden_size fusion_hidden_size word_embed_dim "
            "mask_feature_size feature_size encoder_dim decoder_dim prediction_hidden_size "
            "projector_dim model_dim embedding_dim image_hidden_size text_embed_dim d_inner_model "
            "projector_hidden_size perceiver_hidden_size q_hidden_size lru_width output_hidden_size "
            "mm_hidden_size rnn_hidden_dim output_dim n_embed_proj hidden_size_per_layer_total",
        ),
        (
            2 * WIDTH,
            "intermediate_size ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_ff d_inner "
            "mlp_dim ffn_hidden_size dim_feedforward encoder_intermediate_size feed_forward_size "
            "decoder_intermediate_size feedforward_dim inner_dim mlp_hidden_size ff_dim d_ffn "
            "linear_units decoder_mlp_dim feed_forward_proj_dim ffn_intermediate_size ffn_size "
            "mamba_d_inner mamba_intermediate_size encoder_feedforward_dim decoder_feedforward_dim "
            "intermediate_dim local_intermediate_size block_ff_dim dense_intermediate_size",
        ),
        (
            HEADS,
            "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
            "decoder_attention_heads nhead encoder_num_attention_heads decoder_num_attention_heads "
            "attention_heads num_q_heads num_query_heads num_cross_attention_heads",
        ),
        (
            LAYERS,
            "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers "
            "num_encoder_layers num_decoder_layers encoder_num_hidden_layers num_blocks depth "
            "decoder_num_hidden_layers layers encoder_depth decoder_depth decoder_num_layers "
            "encoder_num_layers num_hidden_layers_total n_encoder_layers n_decoder_layers",
        ),
        (VOCABULARY, "vocab_size text_vocab_size decoder_vocab_size encoder_vocab_size"),
        # The rest, by what other sizes they have to agree with.
        (
            WIDTH // HEADS,
            "head_dim attention_head_size d_kv v_head_dim kv_channels "
            "global_head_dim linear_key_head_dim linear_value_head_dim index_head_dim "
            "qk_nope_head_dim attention_head_dim d_head swa_head_dim qk_rope_head_dim",
        ),
        (
            16,
            "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank "
            "shared_intermediate_size moe_shared_expert_intermediate_size expert_intermediate_size "
            "o_lora_rank intermediate_size_mlp_expert ssm_state_size expert_ffn_hidden_size "
            "hidden_size_per_layer_input conv_dim_per_group moe_ffn_hidden_size index_topk "
            "mamba_d_state mamba_d_head mamba_head_dim vocab_size_per_layer state_size d_state",
        ),
        (
            4,
            "num_experts num_local_experts n_routed_experts moe_num_experts num_conv_pos_embeddings "
            "linear_num_key_heads linear_num_value_heads mamba_n_heads mamba_num_heads index_n_heads "
            "sliding_window chunk_size mamba_chunk_size attention_chunk_size local_window_size "
            "zero_expert_num",
        ),
        (
            2,
            "num_experts_per_tok num_experts_per_token moe_topk top_k moe_k num_selected_experts "
            "type_vocab_size mamba_expand moe_top_k num_conv_pos_embedding_groups",
        ),
        (
            1,
            "n_shared_experts num_shared_experts first_k_dense_replace n_group topk_group "
            "moe_num_shared_experts num_dense_layers num_nextn_predict_layers mamba_n_groups n_groups "
            "num_expert_groups num_limited_groups moe_layer_start_index",
        ),
        (
            64,
            "max_position_embeddings n_positions max_sequence_length max_seq_len seq_length "
            "max_source_positions max_target_positions max_encoder_position_embeddings n_ctx "
            "max_decoder_position_embeddings original_max_position_embeddings block_size_total",
        ),
        (IMAGE, "image_size input_size img_size"),
        (PATCH, "patch_size"),
        (5, "num_queries num_query_tokens query_length"),
    ]
    for name in names.split()
}
_KEY_VALUE_HEADS = {
    "num_key_value_heads",
    "n_kv_heads",
    "num_kv_heads",
    "num_global_key_value_heads",
}
_WIDTHS = {"hidden_sizes", "embed_dims", "hidden_dims", "neck_hidden_sizes", "encoder_hidden_sizes"}
_LAYER_NAMES = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_ZERO = ("mask_time_prob", "mask_feature_prob", "router_jitter_noise", "jitter_noise", "layerdrop")
# Special tokens take the last places of the vocabulary, which no sample's text draws from.
_SPECIAL = re.compile(r"(_token_id|_token_index|_token)$")


def small_config(config_class: type, name: str) -> Any:
    """A small configuration of this class."""
    values = shrunk(config_class(), name)
    config = config_class(**values)
    _pin(config)
    return config


def shrunk(default: Any, name: str, *, top: bool = True) -> dict[str, Any]:
    """The arguments that make a configuration small, with those of its parts."""
    values: dict[str, Any] = {}
    parts = set(getattr(type(default), "sub_configs", {}))
    held = {k: v for k, v in vars(default).items() if not k.startswith("_")}
    layers = _number_of_layers(held)
    tokens = _Tokens()
    for key, value in held.items():
        if key in parts or _is_config(value):
            if value is not None:
                part = shrunk(value, value.model_type, top=False)
                values[key] = {**part, "model_type": value.model_type} if value.model_type else part
            continue
        new = _small(key, value, held, layers, tokens)
        if new is not value:
            values[key] = new
    _merge(values, OVERRIDES.get(name, {}))
    return values


class _Tokens:
    """Numbers for special tokens: few, and all different."""

    def __init__(self) -> None:
        self.next = VOCABULARY - 1

    def take(self, key: str) -> int:
        fixed = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        if key in fixed:
            return fixed[key]
        self.next -= 1
        return self.next


def _small(key: str, value: Any, held: dict[str, Any], layers: int, tokens: _Tokens) -> Any:
    if isinstance(value, bool) or value is None:
        return 0 if key == "pad_token_id" else value
    if isinstance(value, float) and ("drop" in key or key in _ZERO):
        return 0.0
    if isinstance(value, int):
        if _SPECIAL.search(key):
            return tokens.take(key)
        if key in _KEY_VALUE_HEADS:
            heads = next((held[h] for h in ("num_attention_heads", "n_heads") if h in held), value)
            return HEADS if value == heads else min(value, HEADS // 2)
        if key in _LAYER_NAMES:
            return layers
        return min(value, _SIZES[key]) if key in _SIZES and value > 0 else value
    if isinstance(value, list | tuple) and value:
        return _small_list(key, list(value), held, layers)
    if isinstance(value, dict) and key.startswith("rope_"):
        return _small_rope(value)
    return value


def _small_list(key: str, value: list[Any], held: dict[str, Any], layers: int) -> Any:
    count = next((held[n] for n in _LAYER_NAMES if isinstance(held.get(n), int)), None)
    if len(value) == count and len(value) > 4 and not isinstance(value[0], dict):
        kinds = list(dict.fromkeys(value))
        return [kinds[i % len(kinds)] for i in range(layers)]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return value
    if key == "depths":
        return [1] * len(value)
    if key in _WIDTHS:
        return [max(8, 8 * (v * 4 // max(value))) for v in value]
    if key in ("num_heads", "num_attention_heads"):
        return [min(v, 2) for v in value]
    if key == "image_size":
        return [IMAGE] * len(value)
    return value


def _small_rope(value: dict[str, Any]) -> dict[str, Any]:
    small = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            small[key] = _small_rope(entry)
        elif key == "mrope_section":
            small[key] = [2, 1, 1]
        elif key == "original_max_position_embeddings":
            small[key] = 64
        else:
            small[key] = entry
    return small


def _number_of_layers(held: dict[str, Any]) -> int:
    """Two, or as many as there are kinds of layers."""
    count = next((held[n] for n in _LAYER_NAMES if isinstance(held.get(n), int)), None)
    kinds = [
        len(dict.fromkeys(value))
        for value in held.values()
        if isinstance(value, list | tuple) and len(value) == count and value
        if isinstance(value[0], str)
    ]
    return max([LAYERS, *kinds])


def _is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict")


def _merge(values: dict[str, Any], more: dict[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            _merge(values[key], value)
        else:
            values[key] = value


def _pin(config: Any) -> None:
    """Nothing may be drawn at random: dropout and what masks inputs in training are off."""
    for key, value in list(vars(config).items()):
        if isinstance(value, float) and ("drop" in key or key in _ZERO):
            setattr(config, key, 0.0)
        elif key == "apply_spec_augment":
            setattr(config, key, False)
        elif _is_config(value):
            _pin(value)
