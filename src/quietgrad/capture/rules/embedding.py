"""Look-ups in a table: embeddings, and bags of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call, gather_rows
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import rule
from quietgrad.factors.base import Factor, to_float32
from quietgrad.factors.gather import Gather

_MAX = 2  # torch's number of that mode of a bag


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
    run = partial(F.embedding, input, padding_idx=padding_idx)
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    return look_up(call, weight, input, padding, run)


@rule(torch.embedding)
def raw_embedding(
    call: Call, weight: Tensor, indices: Tensor, padding_idx: int = -1, *options: Any, **_: Any
) -> Tensor:
    """The native form of :func:`embedding`; what is no row of the table means no padding."""
    padding = padding_idx if 0 <= padding_idx < weight.shape[0] else None
    return look_up(call, weight, indices, padding, lambda rows: torch.embedding(rows, indices))


def look_up(
    call: Call,
    table: Tensor,
    ids: Tensor,
    padding: int | None,
    run: Callable[[Tensor], Tensor],
) -> Tensor:
    """``run`` on the table's values: torch's own look-up, which refuses ids out of range."""
    if not call.is_managed(table):
        raise call.refuse("ids of a look-up cannot be trainable", "Pass integer data", ids)
    output = run(call.value(table))
    if ids.ndim == 0:
        output = output.clone()  # a single number gives a view of the table
    make = partial(gather_rows, padding=padding, table=table.detach())
    return call.watch(output, [(table, make)], saved=[ids], dims=ids.ndim)


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
    """Bags of rows, reduced by torch; each bag's gradient goes to its rows as ``mode`` says."""
    if call.is_managed(per_sample_weights):
        assert per_sample_weights is not None
        per_sample_weights = call.source(per_sample_weights, per_sample_weights.shape, "weights")
    output = F.embedding_bag(
        input,
        call.value(weight),
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )
    if not call.is_managed(weight):
        return output
    places, valid = _places_of_bags(call, input, offsets, include_last_offset, weight)
    # One more id, which no bag has, for the places that lie behind a bag's last one.
    ids = F.pad(input.flatten().long(), (0, 1))[places]
    bags = torch.arange(len(valid), device=valid.device)
    bags = bags.repeat_interleave(valid.sum(1), output_size=input.numel())
    if padding_idx is not None:
        valid = valid & ids.ne(padding_idx % weight.shape[0])
    if mode == "max":
        largest = _rows_of_maxima(weight.detach(), ids, valid)
        share = partial(_share_of_maxima, table=weight.shape)
        saved = [ids, valid, largest]
        return call.watch(output, [(weight, share)], saved=saved, dims=1, reads=(input, bags))
    weights = valid.to(output.dtype)
    if per_sample_weights is not None:
        weights = weights * F.pad(per_sample_weights.detach().flatten(), (0, 1))[places]
    elif mode == "mean":
        weights = weights / valid.sum(1, keepdim=True).clamp_min(1)
    share = partial(_share_by_weight, table=weight.shape)
    saved = [ids, weights]
    return call.watch(output, [(weight, share)], saved=saved, dims=1, reads=(input, bags))


def _places_of_bags(
    call: Call, input: Tensor, offsets: Tensor | None, has_last_offset: bool, table: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions ``[bags, longest]`` of each bag's entries, and which of them are real."""
    if offsets is None:
        places = torch.arange(input.numel(), device=input.device).view(input.shape)
        return places, torch.ones_like(places, dtype=torch.bool)
    offsets = offsets.long()
    ends = offsets[1:]
    if not has_last_offset:
        ends = torch.cat([ends, offsets.new_tensor([len(input)])])
    starts = offsets[: len(ends)]
    if not len(starts):
        places = offsets.new_zeros(0, 1)
        return places, torch.zeros_like(places, dtype=torch.bool)
    lengths = ends - starts
    shortest, longest, last = torch.stack([*lengths.aminmax(), ends[-1]]).tolist()
    if shortest < 0 or last != len(input):
        raise call.refuse(
            "the offsets of the bags decrease, or the last one is not the number of ids",
            "Pass the place of each bag's first id, in their order",
            table,
        )
    places = starts[:, None] + torch.arange(max(1, longest), device=starts.device)
    valid = places < ends[:, None]
    return torch.where(valid, places, last), valid


def _rows_of_maxima(table: Tensor, ids: Tensor, valid: Tensor) -> Tensor:
    """For each bag and column the row to which torch gives the gradient, also where several tie."""
    lengths = valid.sum(1)
    offsets = lengths.cumsum(0) - lengths
    rows: Tensor = torch._embedding_bag(table, ids[valid], offsets, mode=_MAX)[3]
    return rows


def _share_of_maxima(
    layout: Layout, grad: Tensor, ids: Tensor, valid: Tensor, largest: Tensor, *, table: torch.Size
) -> Factor:
    is_largest = valid.unsqueeze(-1) & ids.unsqueeze(-1).eq(largest.unsqueeze(1))
    is_first = is_largest & is_largest.cumsum(1).eq(1)
    values = grad.unsqueeze(1) * is_first
    return Gather(layout.split(ids, 0), layout.split(values, 1), table)


def _share_by_weight(
    layout: Layout, grad: Tensor, ids: Tensor, weights: Tensor, *, table: torch.Size
) -> Factor:
    values = to_float32(grad).unsqueeze(1) * to_float32(weights).unsqueeze(-1)
    return Gather(layout.split(ids, 0), layout.split(values, 1), table)
