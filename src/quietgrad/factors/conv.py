"""Gradients of convolution kernels: of inputs and output gradients, by patches or by groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quietgrad.factors.base import (
    Cost,
    Dense,
    RawNorms,
    TensorFactor,
    form,
    of_samples,
    scale_samples,
    summed,
    to_float32,
    vector_norm,
)
from quietgrad.factors.outer import Outer

_CHUNK_FLOATS = 1 << 20  # of patches at a time: they are read again while they are in the cache

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and so on of a convolution over any number of spatial dimensions."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    output_padding: Sizes
    groups: int
    transposed: bool

    @property
    def arguments(self) -> tuple[Any, ...]:
        """All but the groups, in the order in which torch takes them."""
        sizes = self.stride, self.padding, self.dilation
        return *sizes, self.transposed, self.output_padding


class Conv(TensorFactor):
    """Kernel gradients of ``inputs[B, K, C, ...]`` and output gradients ``grads[B, K, O, ...]``.

    K images belong to each sample. There are two ways to materialize: folding the batch into the
    convolution's groups, so that one ordinary weight-gradient kernel gives all samples' gradients
    at once; and products with the patches under the kernel, a few samples at a time.
    """

    def __init__(
        self, inputs: Tensor, grads: Tensor, shape: torch.Size, geometry: Geometry
    ) -> None:
        self.inputs, self.grads = inputs, grads
        self.batch, self.images = inputs.shape[:2]
        self.shape, self.geometry = shape, geometry
        super().__init__(self.grads, self.inputs)

    def sq_norm(self) -> Tensor:
        parts = [
            Outer(rows.mT, cols, self.geometry.groups).sq_norm() for rows, cols in self._products()
        ]
        return torch.cat(parts) if parts else self.grads.new_zeros(0, dtype=self.dtype)

    def raw_norms(self) -> RawNorms | None:
        width = self.shape.numel() // max(1, self.shape[0]) * self.geometry.groups
        patches = self.batch * self.images * math.prod(self._grid()) * width
        if not 0 < patches <= _CHUNK_FLOATS:
            return None
        ((rows, cols),) = self._products()
        raw = Outer(rows.mT, cols, self.geometry.groups).raw_norms()
        return None if raw is None else raw._replace(factor=self)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.is_half:
            total = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            return self.add_weighted_sum(weights, total)
        grads = scale_samples(self.grads, weights).flatten(0, 1)
        inputs = self.inputs.flatten(0, 1)
        return _weight_gradient(inputs, grads, self.shape, self.geometry, self.geometry.groups)

    @summed
    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        return total.add_(self.weighted_sum(weights))

    def materialize(self) -> Tensor:
        return next(iter(self.materializers().values()))()

    def materializers(self) -> dict[str, Callable[[], Tensor]]:
        if self.geometry.groups > 1:
            return {"grouped": self._by_groups}
        ways = {"grouped": self._by_groups, "patches": self._by_patches}
        images = self.inputs.flatten(0, 1)
        channels_last = images.shape[1] > 1 and images.movedim(1, -1).is_contiguous()
        return dict(reversed(ways.items())) if channels_last else ways

    def signature(self) -> Hashable:
        return Conv, form(self.inputs), form(self.grads), self.shape, self.geometry

    def _with(self, change: Callable[[Tensor], Tensor]) -> Conv:
        return Conv(change(self.inputs), change(self.grads), self.shape, self.geometry)

    def scaled(self, scales: Tensor) -> Conv:
        grads = scale_samples(self.grads, scales)
        return Conv(self.inputs, grads, self.shape, self.geometry)

    def rescaled(self) -> tuple[Dense, Tensor]:
        # Large entries of both maps need not lie under one kernel: only the sums tell the size.
        return Dense(self.materialize()).rescaled()

    @of_samples
    def magnitude(self) -> Tensor:
        # No patch is longer than the whole image.
        lengths = [vector_norm(maps.flatten(1), dim=1) for maps in (self.inputs, self.grads)]
        return lengths[0] * lengths[1]

    def sq_norm_cost(self) -> Cost:
        positions = float(self.images * math.prod(self._grid()))
        groups, height = self.geometry.groups, self.shape[0]
        width = self.shape.numel() / height
        gram = self.batch * groups * positions**2
        columns = self.batch * positions * groups * width
        return Cost(2.0 * gram * (height / groups + width), 2.0 * gram + columns)

    def materialize_cost(self) -> Cost:
        size = float(self.batch * self.shape.numel())
        return Cost(2.0 * self.images * math.prod(self._grid()) * size, size)

    @of_samples
    def _by_groups(self) -> Tensor:
        shape = torch.Size((self.batch * self.shape[0], *self.shape[1:]))
        inputs, grads = (t.transpose(0, 1).flatten(1, 2) for t in (self.inputs, self.grads))
        groups = self.batch * self.geometry.groups
        stacked = _weight_gradient(inputs, grads, shape, self.geometry, groups)
        return stacked.view(self.batch, *self.shape)

    def _by_patches(self) -> Tensor:
        height, width, *kernel = self.shape
        out = torch.empty(
            (self.batch, height, width * math.prod(kernel)), dtype=self.dtype, device=self.device
        )
        start = 0
        for rows, cols in self._products():
            torch.bmm(rows, cols, out=out[start : start + len(rows)])
            start += len(rows)
        return out.view(self.batch, height, *kernel, width).movedim(-1, 2)

    def _products(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A few samples at a time: the gradients are the products of rows and columns.

        Rows are those of the map on which the kernel slides; columns are the patches of the other
        map, with channels last, or first where they fall into groups.
        """
        small, large = self.grads, self.inputs
        if self.geometry.transposed:
            small, large = large, small
        for samples, cols in _patches(large, self.shape[2:], self._grid(), self.geometry):
            yield to_float32(_rows(small[samples])), cols

    def _grid(self) -> torch.Size:
        """Spatial size of the map on which the kernel slides: one outer product per position."""
        return (self.inputs if self.geometry.transposed else self.grads).shape[3:]


def _patches(
    images: Tensor, kernel: Sizes, grid: Sizes, geometry: Geometry
) -> Iterator[tuple[slice, Tensor]]:
    """Some samples of ``images[B, K, C, ...]``, and their patches, at each position of the grid.

    Patches are ``[samples, K * positions, kernel * C]``, or ``C * kernel`` where channels fall into
    groups. Those of one chunk are overwritten by those of the next.
    """
    batch, per_sample, channels, *sizes = images.shape
    width, positions = channels * math.prod(kernel), math.prod(grid)
    most = max(1, min(batch, _CHUNK_FLOATS // max(1, per_sample * positions * width)))
    steps = zip(grid, geometry.stride, kernel, geometry.dilation, strict=True)
    reach = [(g - 1) * s + (k - 1) * d + 1 for g, s, k, d in steps]
    margins = zip(reach, sizes, geometry.padding, strict=True)
    sides = [max(need, size + 2 * margin) for need, size, margin in margins]
    wide = to_float32(images[:0])
    padded = wide.new_zeros(most * per_sample, *sides, channels)  # channels last: quicker to copy
    windows = _view_windows(padded, kernel, grid, geometry)
    copied = windows.new_empty(windows.shape)
    inside = tuple(slice(p, p + size) for p, size in zip(geometry.padding, sizes, strict=True))
    for start in range(0, batch, most):
        count = min(most, batch - start)
        samples, used = slice(start, start + count), count * per_sample
        padded[(slice(used), *inside)].copy_(images[samples].flatten(0, 1).movedim(1, -1))
        copied[:used].copy_(windows[:used])
        yield samples, copied[:used].view(count, per_sample * positions, width)


def _view_windows(padded: Tensor, kernel: Sizes, grid: Sizes, geometry: Geometry) -> Tensor:
    """The patches as a view: ``[N, *grid, *kernel, C]`` or ``[N, *grid, C, *kernel]``."""
    first, *spatial, last = padded.stride()
    steps = [stride * s for stride, s in zip(spatial, geometry.stride, strict=True)]
    taps = [stride * d for stride, d in zip(spatial, geometry.dilation, strict=True)]
    images, channels = padded.shape[0], padded.shape[-1]
    if geometry.groups > 1:
        size = (images, *grid, channels, *kernel)
        return padded.as_strided(size, (first, *steps, last, *taps))
    return padded.as_strided((images, *grid, *kernel, channels), (first, *steps, *taps, last))


def _rows(maps: Tensor) -> Tensor:
    """``[B, K, C, ...]`` as ``[B, C, K * positions]``, copied only if it must be."""
    last = maps.movedim(2, -1)
    if last.flatten(2, -2).is_contiguous():
        return last.reshape(len(maps), -1, maps.shape[2]).mT
    return maps.transpose(1, 2).flatten(2)


def _weight_gradient(
    inputs: Tensor, grads: Tensor, shape: torch.Size, geometry: Geometry, groups: int
) -> Tensor:
    inputs, grads = _plainly_laid_out(inputs), _plainly_laid_out(grads)
    weight = inputs.new_empty(1).expand(shape)  # only its shape is read
    gradient: Tensor
    which = (False, True, False)
    _, gradient, _ = torch.ops.aten.convolution_backward(
        grads, inputs, weight, None, *geometry.arguments, groups, which
    )
    return gradient


def _plainly_laid_out(images: Tensor) -> Tensor:
    """The same memory with ordinary strides: those of dimensions of size one may be anything."""
    if not images.is_contiguous():
        return images
    strides = torch.empty(images.shape, device="meta").stride()
    return images if images.stride() == strides else images.as_strided(images.shape, strides)
