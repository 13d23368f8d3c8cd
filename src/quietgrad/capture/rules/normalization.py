"""Normalizations within a sample: their scale and shift are small, their statistics are not stored.

The normalized input is recomputed from the saved input when the gradient arrives; the native
kernel keeps that input alive anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from quietgrad.capture.call import Call, Uses, by_row, sum_channels
from quietgrad.capture.layout import Layout
from quietgrad.capture.operations import rule
from quietgrad.factors.base import Dense, Factor, is_half, to_float32

if TYPE_CHECKING:
    from quietgrad.capture.tape import Site

Normalize = Callable[[Tensor], Tensor]


@rule(F.layer_norm, torch.layer_norm)
def layer_norm(
    call: Call,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    """Normalization over the last dimensions."""
    # Not by way of F, which asks again whether somebody is watching.
    values = call.value(weight), call.value(bias)
    output = torch.layer_norm(input, normalized_shape, *values, eps, cudnn_enable)
    normalize = partial(torch.layer_norm, normalized_shape=normalized_shape, eps=eps)
    return _watch_trailing(call, output, input, (weight, bias), normalized_shape, normalize)


@rule(F.rms_norm, torch.rms_norm)
def rms_norm(
    call: Call,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Division by the root mean square over the last dimensions."""
    output = F.rms_norm(input, normalized_shape, call.value(weight), eps)
    eps = _default_eps(input.dtype) if eps is None else eps
    normalize = partial(F.rms_norm, normalized_shape=normalized_shape, eps=eps)
    return _watch_trailing(call, output, input, (weight, None), normalized_shape, normalize)


@cache
def _default_eps(dtype: torch.dtype) -> float:
    """Torch's eps where none is given: of the type it computes in; formerly of the input."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    small = torch.full((1,), 0.01, dtype=dtype, device="cpu")  # between both in half precision
    is_wide = float(F.rms_norm(small, (1,))) > 0.5
    return torch.finfo(wide if is_wide else dtype).eps


@rule(F.group_norm, torch.group_norm)
def group_norm(
    call: Call,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """Normalization over groups of channels."""
    if _is_native(input, weight, bias):
        found = _native_group_norm(call, input, num_groups, weight, bias, eps)
        if found is not None:
            return found
    return plain_group_norm(call, input, num_groups, weight, bias, eps)


def plain_group_norm(
    call: Call,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Tensor:
    """The same without torch's kernels for each image."""
    output = F.group_norm(input, num_groups, call.value(weight), call.value(bias), eps)
    normalize = partial(F.group_norm, num_groups=num_groups, eps=eps)
    return _watch_channels(call, output, input, (weight, bias), normalize)


def _is_native(input: Tensor, *affine: Tensor | None) -> bool:
    """Whether torch's own kernel takes them as they are, and gives the statistics."""
    dtypes = {tensor.dtype for tensor in (input, *affine) if tensor is not None}
    return (
        dtypes in ({torch.float32}, {torch.float64})
        and not torch.is_autocast_enabled(input.device.type)
        and (input.is_contiguous() or _has_channels_last(input))
        and input.numel() > 0
    )


def _has_channels_last(images: Tensor) -> bool:
    """Whether the channels of a pixel lie side by side."""
    return images.ndim == 4 and images.is_contiguous(memory_format=torch.channels_last)


def _native_group_norm(
    call: Call,
    input: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor | None:
    """None where it has no advantage."""
    images, channels = input.shape[:2]
    pixels = input.numel() // (images * channels)
    affine = call.value(weight), call.value(bias)
    if input.device.type == "cpu" and all(a is not None and not a.requires_grad for a in affine):
        own: Uses = [(weight, partial(_sum_images, place=0)), (bias, partial(_sum_images, place=1))]
        site = call.site(own, input.shape, dims=1)
        if site is not None:
            apply: Any = _GroupNorm.apply
            normalized: Tensor = apply(input, call.token, site, *affine, groups, eps)
            return normalized
    if not input.is_contiguous():
        return None
    output, mean, scale = torch.native_group_norm(
        input, *affine, images, channels, pixels, groups, eps
    )
    gradients = _GroupNormGradients(groups)
    uses: Uses = [(weight, gradients.of_scale), (bias, gradients.of_shift)]
    return call.watch(output, uses, saved=[input, mean, scale], dims=1)


class _GroupNormGradients:
    """Of scale and shift at once: torch's kernel, to which every sample's channels are its own."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._last: tuple[Tensor, Tensor, Tensor] | None = None

    def of_scale(self, layout: Layout, grad: Tensor, *saved: Tensor) -> Factor:
        return Dense(layout.sum_positions(self._of_images(grad, *saved)[0], 1))

    def of_shift(self, layout: Layout, grad: Tensor, *saved: Tensor) -> Factor:
        return Dense(layout.sum_positions(self._of_images(grad, *saved)[1], 1))

    def _of_images(
        self, grad: Tensor, input: Tensor, mean: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        last, self._last = self._last, None
        if last is not None and last[0] is grad:
            return last[1:]
        images, channels = input.shape[:2]
        pixels = input.numel() // (images * channels)
        _, of_scale, of_shift = torch.ops.aten.native_group_norm_backward(
            grad.reshape(1, images * channels, pixels),
            input.reshape(1, images * channels, pixels),
            mean.view(1, -1),
            scale.view(1, -1),
            input.new_empty(images * channels),  # not read, but torch wants it
            1,
            images * channels,
            pixels,
            images * self._groups,
            (False, True, True),
        )
        both = of_scale.view(images, channels), of_shift.view(images, channels)
        self._last = (grad, *both)
        return both


def _sum_images(layout: Layout, grad: Tensor, *sums: Tensor, place: int) -> Factor:
    return Dense(layout.sum_positions(sums[place], 1))


class _GroupNorm(torch.autograd.Function):
    """Group normalization whose site also receives every image's gradients of scale and shift.

    Torch's kernel adds them up over the images. Channels of different images may as well be those
    of one image, in groups of their own: there is nothing to add up then. Where channels come last
    in memory, they may not, and that kernel takes several times as long.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        token: Tensor,
        site: Site,
        weight: Tensor,
        bias: Tensor,
        groups: int,
        eps: float,
    ) -> Tensor:
        images, channels = input.shape[:2]
        pixels = input.numel() // (images * channels)
        output, mean, scale = torch.native_group_norm(
            input, weight, bias, images, channels, pixels, groups, eps
        )
        ctx.site = site
        ctx.save_for_backward(input, mean, scale, weight)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        input, mean, scale, weight = ctx.saved_tensors
        if grad is None:
            ctx.site.receive(None, ())
            return (None,) * 7
        gradients = _fold_images if input.is_contiguous() else _sum_pixels
        needs = bool(ctx.needs_input_grad[0])
        gradient, scales, shifts = gradients(grad, input, mean, scale, weight, needs)
        ctx.site.receive(grad, (scales, shifts))
        return gradient, *(None,) * 6


def _fold_images(
    grad: Tensor, input: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of the input, and of each image's scale and shift, by torch's kernel."""
    images, channels = input.shape[:2]
    folded = (1, images * channels, input.numel() // (images * channels))
    gradient, scales, shifts = torch.ops.aten.native_group_norm_backward(
        grad.contiguous().view(folded),
        input.view(folded),
        mean.view(1, -1),
        scale.view(1, -1),
        weight.repeat(images),
        *folded,
        mean.numel(),
        (needs_input, True, True),
    )
    gradient = gradient.view(input.shape) if needs_input else None
    return gradient, scales.view(images, channels), shifts.view(images, channels)


_SIDE_BY_SIDE = 512  # so many numbers of several pixels in one row make long enough loops


def _sum_pixels(
    grad: Tensor, input: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, needs_input: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """The same where channels come last: the input's gradient is linear in both maps."""
    (images, channels), groups = input.shape[:2], mean.shape[1]
    pixels, width = input.numel() // (images * channels), channels // groups
    aside = 1
    while 2 * aside * channels <= _SIDE_BY_SIDE and not pixels % (2 * aside):
        aside *= 2
    long = images, pixels // aside, aside * channels
    grads, inputs = (maps.movedim(1, -1).reshape(long) for maps in (grad, input))
    products = grads * inputs
    sums, shifts = (
        maps.sum(1).view(images, aside, channels).sum(1).view(images, groups, width)
        for maps in (products, grads)
    )
    means, stretch = mean.view(images, groups, 1), scale.view(images, groups, 1)
    scales = (sums - means * shifts) * stretch
    own = scales.view(images, channels), shifts.view(images, channels)
    if not needs_input:
        return None, *own

    def spread(factors: Tensor) -> Tensor:
        each = factors.expand(images, groups, width).reshape(images, 1, channels)
        return each.repeat(1, 1, aside)

    weights = weight.view(groups, width)
    slope = (scales * weights).sum(2, keepdim=True) * stretch.square() / -(pixels * width)
    level = (shifts * weights).sum(2, keepdim=True) * stretch / -(pixels * width)
    constant = spread(level - slope * means)
    torch.addcmul(constant, grads, spread(stretch * weights), out=products)
    products.addcmul_(inputs, spread(slope))
    by_pixel = products.view(images, *input.shape[2:], channels)
    return by_pixel.movedim(-1, 1), *own


@rule(F.instance_norm)
def instance_norm(
    call: Call,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalization over each channel of each sample, or with fixed statistics."""
    normalize = partial(F.instance_norm, use_input_stats=use_input_stats, eps=eps)
    statistics = running_mean, running_var
    # The native kernel returns a view, which cannot be tapped in place.
    output = normalize(input, *statistics, call.value(weight), call.value(bias)).clone()
    again = partial(_normalize_with, normalize=normalize, statistics=statistics)
    return _watch_channels(call, output, input, (weight, bias), again)


@rule(F.batch_norm)
def fixed_batch_norm(
    call: Call,
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch normalization with fixed statistics: a scale and a shift (training mode is refused)."""
    normalize = partial(F.batch_norm, training=False, eps=eps)
    statistics = running_mean, running_var
    output = normalize(input, *statistics, call.value(weight), call.value(bias))
    again = partial(_normalize_with, normalize=normalize, statistics=statistics)
    return _watch_channels(call, output, input, (weight, bias), again)


def _normalize_with(
    input: Tensor,
    *,
    normalize: Callable[..., Tensor],
    statistics: tuple[Tensor | None, Tensor | None],
) -> Tensor:
    """With fixed statistics, which may be in half precision."""
    mean, variance = (None if each is None else to_float32(each) for each in statistics)
    return normalize(input, mean, variance)


def _watch_trailing(
    call: Call,
    output: Tensor,
    input: Tensor,
    affine: tuple[Tensor | None, Tensor | None],
    shape: Sequence[int],
    normalize: Normalize,
) -> Tensor:
    scale = partial(_trailing_scale, dims=len(shape), normalize=normalize)
    shift = partial(_trailing_scale, dims=len(shape), normalize=None)
    saved = [input] if call.is_managed(affine[0]) else []
    uses = [(affine[0], scale), (affine[1], shift)]
    return call.watch(output, uses, saved=saved, dims=output.ndim - len(shape))


def _watch_channels(
    call: Call,
    output: Tensor,
    input: Tensor,
    affine: tuple[Tensor | None, Tensor | None],
    normalize: Normalize,
) -> Tensor:
    scale = partial(_channel_scale, normalize=normalize)
    saved = [input] if call.is_managed(affine[0]) else []
    return call.watch(output, [(affine[0], scale), (affine[1], sum_channels)], saved=saved, dims=1)


@by_row
def _trailing_scale(
    layout: Layout, grad: Tensor, *inputs: Tensor, dims: int, normalize: Normalize | None
) -> Factor:
    """Of the scale, or of the shift if nothing normalizes."""
    products = to_float32(grad) if normalize is None else _products(grad, inputs[0], normalize)
    return Dense(layout.sum_positions(products, dims))


@by_row
def _channel_scale(layout: Layout, grad: Tensor, input: Tensor, *, normalize: Normalize) -> Factor:
    return sum_channels(layout, _products(grad, input, normalize))


def _products(grad: Tensor, input: Tensor, normalize: Normalize) -> Tensor:
    """With what was normalized; as little as can be is widened at a time."""
    normalized = normalize(to_float32(input))
    return normalized.mul_(grad) if is_half(grad) else normalized * grad
