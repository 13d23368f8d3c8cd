"""Gradients of convolution kernels, from the layer's input and its output gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad.factors.base import Cost, Factor, Stamp, form, scale_samples, vector_norm, wide
from quietgrad.factors.outer import Outer
from quietgrad.factors.patches import Patches, laid_out_last


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

    K images belong to each sample. There are two ways to materialize: folding the batch into the
    convolution's groups, so that one ordinary weight-gradient kernel gives all samples' gradients
    at once; and products with the patches under the kernel, a few samples at a time.
    """

    def __init__(
        self, inputs: Tensor, grads: Tensor, shape: torch.Size, geometry: Geometry
    ) -> None:
        self.inputs, self.grads = wide(inputs), wide(grads)
        self.batch, self.images = inputs.shape[:2]
        self.shape, self.geometry = shape, geometry
        self._stamp = Stamp(self.inputs, self.grads)

    def stamps(self) -> Iterable[Stamp]:
        return (self._stamp,)

    def sq_norm(self) -> Tensor:
        parts = [
            Outer(rows.mT, cols, self.geometry.groups).sq_norm() for rows, cols in self._products()
        ]
        return torch.cat(parts) if parts else self.grads.new_zeros(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        grads = scale_samples(self.grads, weights).flatten(0, 1)
        inputs = self.inputs.flatten(0, 1)
        return _weight_gradient(inputs, grads, self.shape, self.geometry, self.geometry.groups)

    def materialize(self) -> Tensor:
        return next(iter(self.materializers().values()))()

    def materializers(self) -> dict[str, Callable[[], Tensor]]:
        if self.geometry.groups > 1:
            return {"grouped": self._by_groups}
        ways = {"grouped": self._by_groups, "patches": self._by_patches}
        return dict(reversed(ways.items())) if laid_out_last(self.inputs.flatten(0, 1)) else ways

    @property
    def device(self) -> torch.device:
        return self.grads.device

    @property
    def dtype(self) -> torch.dtype:
        return self.grads.dtype

    def signature(self) -> Hashable:
        return Conv, form(self.inputs), form(self.grads), self.shape, self.geometry

    def select(self, samples: slice | Tensor) -> Conv:
        return Conv(self.inputs[samples], self.grads[samples], self.shape, self.geometry)

    def concatenated(self, *others: Conv) -> Conv:
        """Several uses of one kernel are one use on more images."""
        if not others:
            return self
        inputs = torch.cat([self.inputs, *(other.inputs for other in others)], 1)
        grads = torch.cat([self.grads, *(other.grads for other in others)], 1)
        return Conv(inputs, grads, self.shape, self.geometry)

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

    def _by_groups(self) -> Tensor:
        shape = torch.Size((self.batch * self.shape[0], *self.shape[1:]))
        inputs, grads = (t.transpose(0, 1).flatten(1, 2) for t in (self.inputs, self.grads))
        groups = self.batch * self.geometry.groups
        stacked = _weight_gradient(inputs, grads, shape, self.geometry, groups)
        return stacked.view(self.batch, *self.shape)

    def _by_patches(self) -> Tensor:
        height, width, *kernel = self.shape
        out = self.grads.new_empty(self.batch, height, width * math.prod(kernel))
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
        patches = Patches(
            large,
            tuple(self.shape[2:]),
            tuple(self._grid()),
            self.geometry.stride,
            self.geometry.padding,
            self.geometry.dilation,
            channels_first=self.geometry.groups > 1,
        )
        for samples, cols in patches.chunks():
            yield _rows(small[samples]), cols

    def _grid(self) -> torch.Size:
        """Spatial size of the map on which the kernel slides: one outer product per position."""
        return (self.inputs if self.geometry.transposed else self.grads).shape[3:]


def _rows(maps: Tensor) -> Tensor:
    """``[B, K, C, ...]`` as ``[B, C, K * positions]``, copied only if it must be."""
    last = maps.movedim(2, -1)
    if last.flatten(2, -2).is_contiguous():
        return last.reshape(len(maps), -1, maps.shape[2]).mT
    return maps.transpose(1, 2).flatten(2)


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
