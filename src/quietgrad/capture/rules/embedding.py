"""Look-ups in a table: embeddings, and bags of embeddings."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call, gather_rows
from quietgrad.capture.operations import rule


@rule(F.embedding)
def embedding(
    call: Call,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    *options: Any,
    **_: Any,
) -> Tensor:
    """Rows of a table; the row at ``padding_idx`` gets no gradient."""
    return look_up(call, weight, input, padding_idx)


@rule(torch.embedding)
def raw_embedding(
    call: Call, weight: Tensor, indices: Tensor, padding_idx: int = -1, *options: Any, **_: Any
) -> Tensor:
    """The native form of :func:`embedding`; a negative ``padding_idx`` means none."""
    return look_up(call, weight, indices, padding_idx if padding_idx >= 0 else None)


@rule(F.embedding_bag)
def embedding_bag(
    call: Call,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags as padded rows: looked up like any embedding, then reduced over each bag."""
    valid = torch.ones_like(input, dtype=torch.bool)
    if input.ndim == 1:
        if offsets is None:
            raise call.refuse("1-D input needs offsets", "Pass offsets or a 2-D input", weight)
        ends = (
            offsets[1:]
            if include_last_offset
            else torch.cat([offsets[1:], offsets.new_tensor([len(input)])])
        )
        starts = offsets[:-1] if include_last_offset else offsets
        places, valid = _padded_places(starts, ends)
        input = F.pad(input, (0, 1))[places]
        if per_sample_weights is not None:
            per_sample_weights = F.pad(per_sample_weights, (0, 1))[places]
    if padding_idx is not None:
        valid = valid & input.ne(padding_idx % weight.shape[0])
    vectors = look_up(call, weight, input, padding_idx)
    if per_sample_weights is not None:
        vectors = vectors * per_sample_weights.unsqueeze(-1)
    return _reduce_bags(vectors, valid, mode)


def look_up(call: Call, table: Tensor, ids: Tensor, padding: int | None) -> Tensor:
    """Rows ``ids`` of a table; the one at ``padding`` gets no gradient."""
    if not call.is_managed(table):
        raise call.refuse("ids of a look-up cannot be trainable", "Pass integer data", ids)
    padding = None if padding is None else padding % table.shape[0]
    # Never a view of the table, as indexing with a single number would give.
    rows = call.value(table).reshape(table.shape[0], -1)
    output = torch.embedding(rows, ids.remainder(table.shape[0]))
    if table.ndim != 2:
        output = output.reshape((*ids.shape, *table.shape[1:])).clone()
    make = partial(gather_rows, padding=padding, table=table.detach())
    return call.watch(output, [(table, make)], saved=[ids], dims=ids.ndim)


def _padded_places(starts: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Positions ``[bags, longest]`` of each bag's entries, and which of them are real."""
    longest = int((ends - starts).max().clamp_min(1))
    places = starts[:, None] + torch.arange(longest, device=starts.device)
    valid = places < ends[:, None]
    return torch.where(valid, places, ends[-1]), valid


def _reduce_bags(vectors: Tensor, valid: Tensor, mode: str) -> Tensor:
    mask = valid.unsqueeze(-1)
    if mode == "max":
        largest = vectors.masked_fill(~mask, -torch.inf).amax(1)
        return largest.masked_fill(~valid.any(1, keepdim=True), 0.0)
    total = (vectors * mask).sum(1)
    return total / valid.sum(1, keepdim=True).clamp_min(1) if mode == "mean" else total
