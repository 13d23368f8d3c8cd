"""Entries of a parameter that data selects: indexing, gathering, masks.

Which entries these are is found by running the operation on their numbers, so that all ways to
write it (several indices, slices, ellipses, lists) are one rule.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from quietgrad.capture.call import Call
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import rule
from quietgrad.capture.rules.embedding import look_up
from quietgrad.capture.rules.fallback import run_per_sample
from quietgrad.factors.base import Factor
from quietgrad.factors.gather import Gather


@rule(Tensor.__getitem__)
def getitem(call: Call, input: Tensor, index: Any) -> Tensor:
    """``parameter[index]``; rows by one tensor of integers are looked up as in an embedding."""
    rows = index
    if isinstance(index, tuple) and index and all(_is_everything(part) for part in index[1:]):
        rows = index[0]
    is_integral = isinstance(rows, Tensor) and rows.dtype in (torch.int64, torch.int32)
    if is_integral and call.is_managed(input):
        if rows.ndim == 0:
            return call.choose(input, rows)
        return look_up(call, input, rows, None, lambda table: table[rows])
    return select(call, input, index)


@rule(torch.index_select, Tensor.index_select)
def index_select(call: Call, input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows, or slices along any other dimension."""
    if dim % max(1, input.ndim) == 0 and index.ndim == 1 and call.is_managed(input):
        return look_up(call, input, index, None, lambda table: table.index_select(0, index))
    return select(call, input, dim, index)


@rule(torch.gather, Tensor.gather, torch.take_along_dim, Tensor.take_along_dim)
@rule(torch.take, Tensor.take, torch.masked_select, Tensor.masked_select)
def select(call: Call, *args: Any, **kwargs: Any) -> Tensor:
    """Any operation whose output is made of entries of its first argument."""
    input, *rest = args or (kwargs.pop("input"),)
    spread = call.own_copies(input)
    if not call.is_managed(spread):
        chosen: Tensor = call.function(spread, *rest, **kwargs)  # each sample has its own copy
        return chosen
    if any(call.is_managed(other) for other in (*rest, *kwargs.values())) or "out" in kwargs:
        found: Tensor = run_per_sample(call, input, *rest, **kwargs)
        return found
    numbers = torch.arange(input.numel(), device=input.device).view(input.shape)
    places = call.function(numbers, *rest, **kwargs)
    output = call.value(input).take(places)
    ids, trailing = _as_rows(places, input.shape)
    make = partial(_entries, trailing=trailing, shape=input.shape)
    return call.watch(output, [(input, make)], saved=[ids], dims=places.ndim - trailing)


def _is_everything(part: Any) -> bool:
    """Whether a part of an index takes what is there: ``:`` or ``...``."""
    return part is Ellipsis or (isinstance(part, slice) and part == slice(None))


def _as_rows(places: Tensor, shape: torch.Size) -> tuple[Tensor, int]:
    """Numbers of whole rows, and how many trailing dimensions a row has; entries are rows, too."""
    for trailing in range(min(len(shape), places.ndim - 1), 0, -1):
        if places.shape[-trailing:] != shape[-trailing:] or not places.numel():
            continue
        width = shape[-trailing:].numel()
        rows = places.flatten(-trailing)
        first = rows[..., 0]
        along = torch.arange(width, device=places.device)
        if bool((first % width == 0).all()) and torch.equal(rows, first.unsqueeze(-1) + along):
            return first // width, trailing
    return places, 0


def _entries(
    layout: Layout, grad: Tensor, ids: Tensor, *, trailing: int, shape: torch.Size
) -> Factor:
    values = layout.split(grad, trailing)
    values = values.flatten(2) if trailing else values.unsqueeze(-1)
    return Gather(layout.split(ids, 0), values, shape)
