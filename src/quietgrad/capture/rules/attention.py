"""nn.MultiheadAttention, as the projections and the attention it is made of."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call
from quietgrad.capture.operations import rule


@rule(F.multi_head_attention_forward)
def multi_head_attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The same computation as torch's, sequence first, on operations that are captured."""
    if static_k is not None or static_v is not None or query.ndim != 3:
        raise call.refuse(
            "static keys and unbatched inputs are not supported",
            "Pass batched query, key and value",
            in_proj_weight,
        )
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    with call.recapture():
        q, k, v = _project(query, key, value, in_proj_weight, in_proj_bias, separate)
        if bias_k is not None and bias_v is not None:
            k = torch.cat([k, bias_k.expand(1, k.shape[1], -1)])
            v = torch.cat([v, bias_v.expand(1, v.shape[1], -1)])
        q, k, v = (_split_heads(t, num_heads) for t in (q, k, v))
        if add_zero_attn:
            k, v = (F.pad(t, (0, 0, 0, 1)) for t in (k, v))
        mask = _mask(attn_mask, key_padding_mask, q, k)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        weights = F.softmax(scores if mask is None else scores + mask, -1)
        # As torch does it, so that draws are of the same shape: see capture/draws.py.
        rows = weights.flatten(0, 1) if need_weights else weights
        dropped = F.dropout(rows, dropout_p, training).view_as(weights)
        merged = (dropped @ v).permute(2, 0, 1, 3).flatten(2)
        output = F.linear(merged, out_proj_weight, out_proj_bias)
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


def _project(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    separate: tuple[Tensor | None, ...] | None,
) -> tuple[Tensor, ...]:
    if weight is not None and query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    parts: Any = separate if weight is None else weight.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    inputs = (query, key, value)
    return tuple(F.linear(x, w, b) for x, w, b in zip(inputs, parts, biases, strict=True))


def _split_heads(tensor: Tensor, heads: int) -> Tensor:
    """``[T, B, E]`` -> ``[B, heads, T, E / heads]``."""
    steps, batch, width = tensor.shape
    return tensor.reshape(steps, batch, heads, width // heads).permute(1, 2, 0, 3)


def _mask(
    attention: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor
) -> Tensor | None:
    """Both masks as one addend of the scores ``[B, heads, T, S]``."""
    batch, heads, steps = query.shape[:3]
    total: Tensor | None = None
    for mask in (attention, padding):
        if mask is None:
            continue
        addend = mask.to(query.dtype)
        if mask.dtype == torch.bool:
            addend = torch.zeros_like(addend).masked_fill(mask, -math.inf)
        addend = F.pad(addend, (0, key.shape[2] - addend.shape[-1]))
        if mask is padding:
            addend = addend.view(batch, 1, 1, -1)
        elif addend.ndim == 3:
            addend = addend.view(batch, heads, steps, -1)
        total = addend if total is None else total + addend
    return total
