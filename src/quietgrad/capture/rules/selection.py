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
from quietgrad.factors.base import Factor, Verdict, verdict_of
from quietgrad.factors.gather import Gather

_INTEGERS = (torch.int64, torch.int32)


@rule(Tensor.__getitem__)
def getitem(call: Call, input: Tensor, index: Any) -> Tensor:
    """``parameter[index]``; rows by one tensor of integers are looked up as in an embedding."""
    rows = index
    if isinstance(index, tuple) and index and all(_is_everything(part) for part in index[1:]):
        rows = index[0]
    is_integral = isinstance(rows, Tensor) and rows.dtype in _INTEGERS
    if is_integral and call.is_managed(input):
        if rows.ndim == 0:
            return call.choose(input, rows)
        return look_up(call, input, rows, None, lambda table: table[rows])
    parts = index if isinstance(index, tuple) else (index,)
    are_numbers = all(isinstance(p, Tensor) and p.dtype in _INTEGERS for p in parts)
    return _select(call, (input, index), kept=input.ndim - len(parts) if are_numbers else None)


@rule(torch.index_select, Tensor.index_select)
def index_select(call: Call, input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Rows, or slices along any other dimension."""
    if dim % max(1, input.ndim) == 0 and index.ndim == 1 and call.is_managed(input):
        return look_up(call, input, index, None, lambda table: table.index_select(0, index))
    kept = input.ndim - 1 - dim % max(1, input.ndim)
    return _select(call, (input, dim, index), kept=kept)


@rule(torch.gather, Tensor.gather, torch.take_along_dim, Tensor.take_along_dim)
@rule(torch.take, Tensor.take, torch.masked_select, Tensor.masked_select)
def select(call: Call, *args: Any, **kwargs: Any) -> Tensor:
    """Any operation whose output is made of entries of its first argument."""
    return _select(call, args or (kwargs.pop("input"),), **kwargs)


def _select(call: Call, args: tuple[Any, ...], *, kept: int | None = None, **kwargs: Any) -> Tensor:
    """The same; ``kept`` trailing dimensions are taken as they are, if that is known."""
    input, *rest = args
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
    ids, trailing = _as_rows(places, input.shape, kept)
    make = partial(_entries, trailing=trailing, shape=input.shape)
    return call.watch(output, [(input, make)], saved=[ids], dims=places.ndim - trailing)


def _is_everything(part: Any) -> bool:
    """Whether a part of an index takes what is there: ``:`` or ``...``."""
    return part is Ellipsis or (isinstance(part, slice) and part == slice(None))


def _as_rows(places: Tensor, shape: torch.Size, kept: int | None) -> tuple[Tensor, int]:
    """Numbers of whole rows, and how many trailing dimensions a row has; entries are rows, too.

    Whether they are whole is looked at, if it is not known how many dimensions are ``kept``.
    """
    found: list[tuple[Tensor, int, Verdict]] = []
    for trailing in range(min(len(shape), places.ndim - 1), 0, -1):
        if places.shape[-trailing:] != shape[-trailing:] or not places.numel():
            continue
        width = shape[-trailing:].numel()
        rows = places.flatten(-trailing)
        first = rows[..., 0]
        if kept is None:
            along = torch.arange(width, device=places.device)
            is_whole = first.remainder(width).eq(0).unsqueeze(-1) & (rows - along).eq(
                first[..., None]
            )
            found.append((first // width, trailing, verdict_of(is_whole.all())))
            if found[-1][-1] is True:
                break
        elif kept == trailing:
            return first // width, trailing
    return next(((ids, trailing) for ids, trailing, is_whole in found if is_whole), (places, 0))


def _entries(
    layout: Layout, grad: Tensor, ids: Tensor, *, trailing: int, shape: torch.Size
) -> Factor:
    values = layout.split(grad, trailing)
    values = values.flatten(2) if trailing else values.unsqueeze(-1)
    return Gather(layout.split(ids, 0), values, shape)
