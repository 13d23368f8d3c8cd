"""A small configuration of any family: the sizes that configurations share, made small alike."""

from __future__ import annotations

import re
from typing import Any

from .overrides import OVERRIDES

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE, PATCH = 32, 4, 2, 99, 32, 8

# Names of sizes by their small value. Heads times the size of a head is the width.
_NAMES = [
    (
        WIDTH,
        "hidden_size d_model n_embd hidden_dim dim embed_dim embedding_size projection_dim "
        "emb_dim encoder_hidden_size decoder_hidden_size cross_attention_hidden_size "
        "out_hidden_size vision_hidden_size text_hidden_size fusion_hidden_size "
        "mask_feature_size feature_size decoder_dim embedding_dim projector_hidden_size "
        "lru_width output_hidden_size output_dim",
    ),
    (
        2 * WIDTH,
        "intermediate_size ffn_dim n_inner encoder_ffn_dim decoder_ffn_dim d_ff d_inner "
        "mlp_dim ffn_hidden_size dim_feedforward feed_forward_size decoder_intermediate_size "
        "encoder_feedforward_dim dense_intermediate_size",
    ),
    (
        HEADS,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads "
        "decoder_attention_heads encoder_num_attention_heads decoder_num_attention_heads "
        "attention_heads num_cross_attention_heads",
    ),
    (
        LAYERS,
        "num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers "
        "num_encoder_layers num_decoder_layers encoder_num_hidden_layers num_blocks depth "
        "decoder_num_hidden_layers layers decoder_depth decoder_num_layers",
    ),
    (
        VOCABULARY,
        "vocab_size text_vocab_size decoder_vocab_size",
    ),
    (
        WIDTH // HEADS,
        "head_dim attention_head_size d_kv v_head_dim kv_channels linear_key_head_dim "
        "linear_value_head_dim index_head_dim qk_nope_head_dim attention_head_dim d_head "
        "swa_head_dim qk_rope_head_dim",
    ),
    (
        16,
        "moe_intermediate_size shared_expert_intermediate_size q_lora_rank kv_lora_rank "
        "shared_intermediate_size moe_shared_expert_intermediate_size o_lora_rank "
        "ssm_state_size expert_ffn_hidden_size hidden_size_per_layer_input index_topk "
        "mamba_d_state mamba_d_head mamba_head_dim state_size",
    ),
    (
        4,
        "num_experts num_local_experts n_routed_experts moe_num_experts "
        "num_conv_pos_embeddings mm_tokens_per_image linear_num_key_heads "
        "linear_num_value_heads mamba_n_heads "
        "mamba_num_heads index_n_heads sliding_window chunk_size mamba_chunk_size "
        "attention_chunk_size zero_expert_num",
    ),
    (
        2,
        "num_experts_per_tok num_experts_per_token moe_topk moe_k type_vocab_size mamba_expand "
        "moe_top_k num_conv_pos_embedding_groups",
    ),
    (
        1,
        "n_shared_experts num_shared_experts first_k_dense_replace n_group topk_group "
        "moe_num_shared_experts num_dense_layers num_nextn_predict_layers mamba_n_groups "
        "n_groups moe_layer_start_index",
    ),
    (
        64,
        "max_position_embeddings n_positions max_seq_len max_source_positions "
        "max_target_positions max_encoder_position_embeddings n_ctx "
        "max_decoder_position_embeddings original_max_position_embeddings",
    ),
    (
        IMAGE,
        "image_size input_size img_size",
    ),
    (
        PATCH,
        "patch_size",
    ),
    (
        5,
        "num_queries num_query_tokens",
    ),
]
_SIZES = {name: size for size, names in _NAMES for name in names.split()}
_KEY_VALUE_HEADS = {
    "num_key_value_heads",
    "n_kv_heads",
    "num_kv_heads",
    "num_global_key_value_heads",
}
_WIDTHS = {"hidden_sizes", "embed_dims", "hidden_dims", "neck_hidden_sizes", "encoder_hidden_sizes"}
_LAYER_NAMES = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_ZERO = ("mask_time_prob", "mask_feature_prob", "router_jitter_noise", "jitter_noise", "layerdrop")
# Sizes that have no default, and without which no model can be made.
_MISSING = {"vocab_size": VOCABULARY, "prediction_length": 4, "context_length": 16}
# Special tokens take the last places of the vocabulary, which no sample's text draws from.
_SPECIAL = re.compile(r"(_token_id|_token_index|_token)$")


def small_config(config_class: type, name: str, *, harsh: bool = False) -> Any:
    """A small configuration of this class; ``harsh`` guesses at sizes of unknown names, too."""
    values = shrunk(config_class(), name, harsh=harsh)
    config = config_class(**values)
    _pin(config)
    return config


def shrunk(default: Any, name: str, *, harsh: bool = False) -> dict[str, Any]:
    """The arguments that make a configuration small, with those of its parts."""
    values: dict[str, Any] = {}
    parts = set(getattr(type(default), "sub_configs", {}))
    held = {k: v for k, v in vars(default).items() if not k.startswith("_")}
    layers = _number_of_layers(held)
    tokens = _Tokens()
    for key, value in held.items():
        if key in parts or _is_config(value):
            if value is not None:
                part = shrunk(value, value.model_type, harsh=harsh)
                values[key] = {**part, "model_type": value.model_type} if value.model_type else part
            continue
        new = _small(key, value, held, layers, tokens)
        if harsh and new is value:
            new = _guess(key, value)
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


_RANDOM_POSITIONS = ("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale")


def _small(key: str, value: Any, held: dict[str, Any], layers: int, tokens: _Tokens) -> Any:
    if key in _RANDOM_POSITIONS:
        return None
    if isinstance(value, bool) or value is None:
        return 0 if key == "pad_token_id" else _MISSING.get(key, value)
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
    if key == "image_grid_pinpoints":
        return [[IMAGE, IMAGE]]
    count = next((held[n] for n in _LAYER_NAMES if isinstance(held.get(n), int)), None)
    if len(value) == count and len(value) > 4 and not isinstance(value[0], dict):
        kinds = _kinds(value)
        return [kinds[i % len(kinds)] for i in range(layers)]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
        return value
    if key == "depths":
        return [1] * len(value)
    if key in ("conv_dim", "tdnn_dim"):
        return [WIDTH] * len(value)
    if key in _WIDTHS:
        return [max(8, 8 * (v * 4 // max(value))) for v in value]
    if key in ("num_heads", "num_attention_heads"):
        return [min(v, 2) for v in value]
    if key == "image_size":
        return [IMAGE] * len(value)
    return value


_LARGE = re.compile(r"hidden|dim|channels|width|filters|latent|inner|feature|embed|intermediate")


def _guess(key: str, value: Any) -> Any:
    """A size of any name: what is as large as a width, and called like one."""
    if isinstance(value, bool) or not _LARGE.search(key):
        return value
    if isinstance(value, int) and value >= 64:
        return WIDTH
    if isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
        return [max(8, 8 * (v * 4 // max(value))) if v >= 16 else v for v in value]
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


def _kinds(value: Any) -> list[Any]:
    return [v for i, v in enumerate(value) if v not in value[:i]]


def _number_of_layers(held: dict[str, Any]) -> int:
    """Two, or as many as there are kinds of layers."""
    count = next((held[n] for n in _LAYER_NAMES if isinstance(held.get(n), int)), None)
    kinds = [
        len(_kinds(value))
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
