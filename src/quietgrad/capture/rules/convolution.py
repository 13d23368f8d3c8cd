"""Convolutions of one to three dimensions, plain and transposed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call, as_computed, sum_channels
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import TorchFunction, rule
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
    run = partial(call.function, stride=stride, padding=padding, dilation=dilation, groups=groups)
    margins, extra = _spell_out_padding(weight, padding, _each(dilation, dims))
    sizes = _each(stride, dims), margins, _each(dilation, dims), (0,) * dims
    geometry = Geometry(*sizes, groups, transposed=False)
    return _convolve(call, input, weight, bias, geometry, run, extra)


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
    options = {"stride": stride, "padding": padding, "output_padding": output_padding}
    run = partial(call.function, **options, groups=groups, dilation=dilation)
    return _convolve(call, input, weight, bias, geometry, run)


def _convolve(
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    run: TorchFunction,
    extra: Sequence[int] = (),
) -> Tensor:
    """``run`` is torch's own function, with all options as they were given."""
    if call.is_managed(input):
        raise call.refuse(
            "the input of a convolution is itself computed from parameters alone",
            "Only the kernel and the bias can be trainable here",
            input,
        )
    if input.ndim == weight.ndim - 1:
        batched = input.unsqueeze(0)
        return _convolve(call, batched, weight, bias, geometry, run, extra).squeeze(0)
    output: Tensor = run(input, call.value(weight), call.value(bias))
    saved = [as_computed(input, output)] if call.is_managed(weight) else []
    kernel = partial(_kernel_factor, shape=weight.shape, geometry=geometry, extra=extra)
    return call.watch(output, [(weight, kernel), (bias, sum_channels)], saved=saved, dims=1)


def _kernel_factor(
    layout: Layout,
    grad: Tensor,
    input: Tensor,
    *,
    shape: torch.Size,
    geometry: Geometry,
    extra: Sequence[int],
) -> Factor:
    image = grad.ndim - 1
    input = F.pad(input, list(extra)) if any(extra) else input
    return Conv(layout.split(input, image), layout.split(grad, image), shape, geometry)


def _spell_out_padding(
    weight: Tensor, padding: Any, dilation: tuple[int, ...]
) -> tuple[tuple[int, ...], Sequence[int]]:
    """Padding as numbers, and what 'same' adds on the right alone, the last dimension first."""
    if not isinstance(padding, str):
        return _each(padding, len(dilation)), ()
    if padding == "valid":
        return (0,) * len(dilation), ()
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    extra = [side for total in reversed(totals) for side in (0, total % 2)]
    return tuple(total // 2 for total in totals), extra


def _each(value: Any, dims: int) -> tuple[int, ...]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values
