"""Gradients of convolution kernels, from the layer's input and its output gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.factors.base import Cost, Factor, scale_samples, vector_norm, wide
from quietgrad.factors.outer import Outer


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and so on of a convolution over any number of spatial dimensions."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    transposed: bool


class Conv(Factor):
    """Kernel gradients of ``inputs[B, K, C, ...]`` and output gradients ``grads[B, K, O, ...]``.

    K images belong to each sample. Materializing folds the batch into the convolution's groups, so
    that one ordinary weight-gradient kernel gives all samples' gradients at once.
    """

    def __init__(
        self, inputs: Tensor, grads: Tensor, shape: torch.Size, geometry: Geometry
    ) -> None:
        self.inputs, self.grads = wide(inputs), wide(grads)
        self.batch, self.images = inputs.shape[:2]
        self.shape, self.geometry = shape, geometry

    def sq_norm(self) -> Tensor:
        return self.unfolded().sq_norm()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        grads = scale_samples(self.grads, weights).flatten(0, 1)
        inputs = self.inputs.flatten(0, 1)
        return _weight_gradient(inputs, grads, self.shape, self.geometry, self.geometry.groups)

    def materialize(self) -> Tensor:
        shape = torch.Size((self.batch * self.shape[0], *self.shape[1:]))
        inputs, grads = (t.transpose(0, 1).flatten(1, 2) for t in (self.inputs, self.grads))
        groups = self.batch * self.geometry.groups
        stacked = _weight_gradient(inputs, grads, shape, self.geometry, groups)
        return stacked.view(self.batch, *self.shape)

    def select(self, samples: slice | Tensor) -> Conv:
        return Conv(self.inputs[samples], self.grads[samples], self.shape, self.geometry)

    def magnitude(self) -> Tensor:
        # No patch is longer than the whole image.
        return _length(self.inputs) * _length(self.grads)

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

    def unfolded(self) -> Outer:
        """The same gradients as outer products of the small map and the patches it touches."""
        small, large = self.inputs, self.grads
        if not self.geometry.transposed:
            small, large = large, small
        patches = _patches(large.flatten(0, 1), self.shape[2:], self._grid(), self.geometry)
        rows = small.flatten(3).transpose(2, 3).flatten(1, 2)
        cols = patches.reshape(self.batch, rows.shape[1], -1)
        return Outer(rows, cols, self.geometry.groups, self.shape)

    def _grid(self) -> torch.Size:
        """Spatial size of the map on which the kernel slides: one outer product per position."""
        return (self.inputs if self.geometry.transposed else self.grads).shape[3:]


def _length(images: Tensor) -> Tensor:
    return vector_norm(images.flatten(1), dim=1)


def _weight_gradient(
    inputs: Tensor, grads: Tensor, shape: torch.Size, geometry: Geometry, groups: int
) -> Tensor:
    inputs, grads = _plainly_laid_out(inputs), _plainly_laid_out(grads)
    weight = inputs.new_empty(1).expand(shape)  # only its shape is read
    gradient: Tensor
    _, gradient, _ = torch.ops.aten.convolution_backward(
        grads,
        inputs,
        weight,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding,
        groups,
        (False, True, False),
    )
    return gradient


def _plainly_laid_out(images: Tensor) -> Tensor:
    """The same memory with ordinary strides: those of dimensions of size one may be anything."""
    if not images.is_contiguous():
        return images
    strides = torch.empty(images.shape, device="meta").stride()
    return images if images.stride() == strides else images.as_strided(images.shape, strides)


def _patches(images: Tensor, kernel: torch.Size, grid: torch.Size, geometry: Geometry) -> Tensor:
    """Patches ``[N, positions, C * kernel]`` under the kernel at every position of ``grid``."""
    dims = len(kernel)
    padding = [p for side in reversed(geometry.padding) for p in (side, side)]
    images = F.pad(images, padding).contiguous()
    channels, *spatial = images.stride()[1:]
    steps = [s * g for s, g in zip(spatial, geometry.stride, strict=True)]
    taps = [s * d for s, d in zip(spatial, geometry.dilation, strict=True)]
    size = (images.shape[0], *grid, images.shape[1], *kernel)
    windows = images.as_strided(size, (images.stride(0), *steps, channels, *taps))
    return windows.flatten(1 + dims).flatten(1, dims)
