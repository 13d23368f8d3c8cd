"""Convolutions of one to three dimensions, plain and transposed."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call, as_computed, sum_channels
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import rule
from quietgrad.factors.base import Factor
from quietgrad.factors.conv import Conv, Geometry


@rule(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution; string padding is spelled out."""
    dims = weight.ndim - 2
    dilation = _each(dilation, dims)
    if isinstance(padding, str):
        input, padding = _spell_out_padding(input, weight, padding, dilation)
    geometry = Geometry(
        _each(stride, dims), _each(padding, dims), dilation, (0,) * dims, groups, transposed=False
    )
    return _convolve(call, input, weight, bias, geometry)


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """A transposed convolution."""
    dims = weight.ndim - 2
    outside = _each(output_padding, dims)
    sizes = _each(stride, dims), _each(padding, dims), _each(dilation, dims), outside
    geometry = Geometry(*sizes, groups, transposed=True)
    return _convolve(call, input, weight, bias, geometry)


def _convolve(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    if call.is_managed(input):
        raise call.refuse(
            "the input of a convolution is itself computed from parameters alone",
            "Only the kernel and the bias can be trainable here",
            input,
        )
    if input.ndim == weight.ndim - 1:
        return _convolve(call, input.unsqueeze(0), weight, bias, geometry).squeeze(0)
    values = call.value(weight), call.value(bias)
    convolve: Any = torch.convolution
    output = convolve(input, *values, *geometry.arguments, geometry.groups)
    saved = [as_computed(input, output)] if call.is_managed(weight) else []
    kernel = partial(_kernel_factor, shape=weight.shape, geometry=geometry)
    return call.watch(output, [(weight, kernel), (bias, sum_channels)], saved=saved, dims=1)


def _kernel_factor(
    layout: Layout, grad: Tensor, input: Tensor, *, shape: torch.Size, geometry: Geometry
) -> Factor:
    image = grad.ndim - 1
    return Conv(layout.split(input, image), layout.split(grad, image), shape, geometry)


def _spell_out_padding(
    input: Tensor, weight: Tensor, padding: str, dilation: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """'same' as numbers; where both sides differ the input is padded by one more on the right."""
    if padding == "valid":
        return input, (0,) * len(dilation)
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    extra = [side for total in reversed(totals) for side in (0, total % 2)]
    if any(extra):
        input = F.pad(input, extra)
    return input, tuple(total // 2 for total in totals)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
