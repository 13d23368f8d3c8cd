"""Elementwise and broadcast use: every sample gets its own copy of the parameter's values."""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.call import Call
from quietgrad.capture.compare import has_digits
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import rule, variants
from quietgrad.factors.base import Dense, Factor, to_float32

_ARITHMETIC = (
    "add sub subtract rsub mul multiply div divide true_divide pow maximum minimum fmax fmin where "
    "lerp addcmul addcdiv fmod remainder atan2 hypot logaddexp logaddexp2 xlogy clamp clip "
    "clamp_min clamp_max truediv copy copysign special_xlogy eq ne lt le gt ge"
).split()


@rule(*variants(_ARITHMETIC), takes_complex=True)
def elementwise(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Arithmetic with broadcasting."""
    if call.writes_in_place and call.is_managed(args[0]):
        raise call.refuse(
            "a trainable parameter, or a tensor computed from such alone, is changed in place",
            "Use the out-of-place operation",
            args[0],
        )
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    # A number beside tensors takes their type, and must still do so as a tensor of copies.
    types = [t.dtype for t in tensors if t.ndim and has_digits(t)]
    dtype = reduce(torch.promote_types, types) if types else None
    args, kwargs = _with_copies(call, (args, kwargs), shape, dtype)
    return call.function(*args, **kwargs)


@rule(torch.masked_fill, Tensor.masked_fill, Tensor.masked_fill_, takes_complex=True)
def masked_fill(call: Call, input: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """A scalar parameter written wherever the mask says so, into the data itself or not."""
    with call.recapture():
        filled = torch.where(mask, value, input)
        return input.copy_(filled) if call.writes_in_place else filled


@rule(*variants("cat concat concatenate stack hstack vstack".split()), takes_complex=True)
def structural(call: Call, *args: Any, **kwargs: Any) -> Any:
    """Joining a parameter with data: one of its own dimensions must run over the samples."""
    args, kwargs = _with_copies(call, (args, kwargs))
    return call.function(*args, **kwargs)


@rule(Tensor.expand_as, takes_complex=True)
def expand_as(call: Call, input: Tensor, other: Tensor) -> Tensor:
    """A parameter broadcast to the shape of data."""
    return call.source(input, other.shape) if call.is_managed(input) else input.expand_as(other)


@rule(torch.prelu, Tensor.prelu)
def prelu(call: Call, input: Tensor, weight: Tensor) -> Tensor:
    """``max(0, x) + weight * min(0, x)``, one weight or one per channel (dimension 1)."""
    aligned = weight.shape
    if weight.numel() > 1 and input.ndim > 2:
        aligned = torch.Size((*weight.shape, *[1] * (input.ndim - 2)))
    if call.is_managed(input):
        with call.recapture():
            return torch.where(input > 0, input, weight.view(aligned) * input)
    output = torch.prelu(input, call.value(weight))
    make = partial(_slope_factor, aligned=aligned, shape=weight.shape)
    return call.watch(output, [(weight, make)], saved=[input], dims=output.ndim)


def _slope_factor(
    layout: Layout, grad: Tensor, input: Tensor, *, aligned: torch.Size, shape: torch.Size
) -> Factor:
    products = to_float32(grad) * to_float32(input).clamp(max=0)
    slopes = layout.unbroadcast(products, aligned)
    return Dense(slopes.reshape(layout.batch, *shape))


@rule(F.scaled_dot_product_attention)
def attention(
    call: Call,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """Attention with a trainable bias on the scores (relative positions)."""
    query, key, value = (
        call.source(t, t.shape, str(i)) if call.is_managed(t) else t
        for i, t in enumerate((query, key, value))
    )
    if call.is_managed(attn_mask):
        assert attn_mask is not None
        lead = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        attn_mask = call.source(attn_mask, (*lead, query.shape[-2], key.shape[-2]), "mask")
    return F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)


@rule(Tensor.__setitem__, takes_complex=True)
def setitem(call: Call, input: Tensor, index: Any, value: Any) -> None:
    """``data[index] = parameter``: each sample is written its own copy."""
    if call.is_managed(input):
        raise call.refuse(
            "a trainable parameter, or a tensor computed from such, is changed in place",
            "Use torch.where, or write to a new tensor",
            input,
            value,
        )
    is_mask = isinstance(index, Tensor) and index.dtype == torch.bool
    if is_mask and value.ndim <= input.ndim - index.ndim:
        # How many rows a sample has is up to the mask: the copies are masked like the data.
        input[index] = call.source(value, input.shape)[index]
        return
    place = input.detach()[index]
    while value.ndim > place.ndim and value.shape[0] == 1:
        with call.recapture():
            value = value.squeeze(0)
    input[index] = call.source(value, place.shape)


def _with_copies(
    call: Call, tree: Any, shape: torch.Size | None = None, dtype: torch.dtype | None = None
) -> Any:
    """Managed tensors broadcast to ``shape``, or as they are; single numbers in this type."""
    labels = iter(range(1000))

    def copy(leaf: Any) -> Any:
        if not call.is_managed(leaf):
            return leaf
        copies = call.source(leaf, leaf.shape if shape is None else shape, f"{next(labels)}")
        if dtype is None or leaf.ndim:
            return copies
        # A complex number stays one beside real tensors.
        return copies.to(torch.result_type(torch.empty(1, dtype=dtype, device="cpu"), leaf))

    return tree_map(copy, tree)
