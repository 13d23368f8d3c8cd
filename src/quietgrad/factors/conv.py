"""Gradients of convolution kernels: of inputs and output gradients, by patches or by groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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

# Of patches at a time and for each of a few threads: they are read again while in the cache.
_CHUNK_FLOATS, _THREADS = 1 << 19, 4
_FEW_CHANNELS = 4  # so few make patches of short runs, which are slow to copy

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
    at once; and products with the patches under the kernel, a few samples at a time. These are laid
    out position by position, or tap by tap where there are few channels.
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
        channels_last = self.inputs.shape[2] > 1 and self.inputs.stride(2) == 1
        if channels_last or self._has_few_channels() or all(a.is_point for a in self._axes()):
            return dict(reversed(ways.items()))
        return ways

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
            count = rows.shape[0]
            torch.bmm(rows, cols, out=out[start : start + count])
            start += count
        if self._has_few_channels():
            return out.view(self.batch, *self.shape)
        return out.view(self.batch, height, *kernel, width).movedim(-1, 2)

    def _products(self) -> Iterator[tuple[Tensor, Tensor]]:
        """A few samples at a time: the gradients are the products of rows and columns.

        Rows are those of the map on which the kernel slides; columns are the patches of the other
        map, with channels last, or first where they are few or fall into groups.
        """
        small, large = self._maps()
        axes = self._axes()
        if all(axis.is_point for axis in axes):
            for dim, axis in enumerate(axes, 3):
                large = large.narrow(dim, 0, (axis.grid - 1) * axis.stride + 1)
                large = large[(slice(None),) * dim + (slice(None, None, axis.stride),)]
            yield to_float32(_rows(small)), to_float32(_rows(large).mT)
            return
        if self._has_few_channels():
            patches = _patches_by_tap(large, axes)
        else:
            patches = _patches(large, axes, by_channel=self.geometry.groups > 1)
        rows = _rows(small) if self.images == 1 else None
        for samples, cols in patches:
            some = _rows(small[samples]) if rows is None else rows[samples]
            yield to_float32(some), cols

    def _has_few_channels(self) -> bool:
        """Whether patches are laid out tap by tap; there may be no more than two dimensions."""
        large = self._maps()[1]
        is_one_image = self.images == 1 and self.geometry.groups == 1 and large.ndim <= 5
        return is_one_image and large.shape[2] <= _FEW_CHANNELS and large.device.type == "cpu"

    def _grid(self) -> torch.Size:
        """Spatial size of the map on which the kernel slides: one outer product per position."""
        return self._maps()[0].shape[3:]

    def _axes(self) -> list[_Axis]:
        _, _, _, *sizes = self._maps()[1].shape
        of = self.geometry
        axes = zip(
            sizes, of.padding, self.shape[2:], self._grid(), of.stride, of.dilation, strict=True
        )
        return [_Axis(*axis) for axis in axes]

    def _maps(self) -> tuple[Tensor, Tensor]:
        """The map on which the kernel slides, and the one of which it sees patches."""
        if self.geometry.transposed:
            return self.inputs, self.grads
        return self.grads, self.inputs


class _Axis(NamedTuple):
    """A spatial dimension of a map of which a kernel sees patches.

    Pixels go into ``stride`` lanes in turn: what one tap of the kernel sees from all positions then
    lies side by side in one of them.
    """

    size: int
    padding: int
    kernel: int
    grid: int
    stride: int
    dilation: int

    @property
    def is_point(self) -> bool:
        """Whether a patch is a pixel of the map."""
        return self.kernel == 1 and not self.padding

    @property
    def side(self) -> int:
        """The size with margins, as far as the kernel reaches or farther: whole lanes."""
        reach = (self.grid - 1) * self.stride + (self.kernel - 1) * self.dilation + 1
        return -(-max(reach, self.size + 2 * self.padding) // self.stride) * self.stride

    @property
    def lane(self) -> int:
        """Pixels in a lane."""
        return self.side // self.stride

    @property
    def inside(self) -> slice:
        """All but the margins."""
        return slice(self.padding, self.padding + self.size)

    def taps(self) -> Iterator[tuple[slice, int, int, int]]:
        """Taps that look into the same lane: which, what lane, from where on, and how far apart."""
        common = math.gcd(self.stride, self.dilation)
        every = self.stride // common
        for first in range(min(every, self.kernel)):
            start, lane = divmod(first * self.dilation, self.stride)
            yield slice(first, None, every), lane, start, self.dilation // common


def _chunks(batch: int, floats: int) -> tuple[int, list[slice]]:
    """How many samples of so many floats of patches are taken at a time, and which."""
    room = _CHUNK_FLOATS * min(_THREADS, torch.get_num_threads())
    count = -(-batch // max(1, room // max(1, floats)))
    most = -(-batch // max(1, count))
    return most, [slice(start, start + most) for start in range(0, batch, max(1, most))]


def _patches(
    images: Tensor, axes: Sequence[_Axis], *, by_channel: bool
) -> Iterator[tuple[slice, Tensor]]:
    """Some samples of ``images[B, K, C, ...]``, and their patches, at each position of the grid.

    Patches are ``[samples, K * positions, kernel * C]``, or ``C * kernel`` if they are wanted by
    channel. Those of one chunk are overwritten by those of the next.
    """
    batch, per_sample, channels = images.shape[:3]
    width = channels * math.prod(axis.kernel for axis in axes)
    positions = math.prod(axis.grid for axis in axes)
    most, chunks = _chunks(batch, per_sample * positions * width)
    sides = [axis.side for axis in axes]
    wide = to_float32(images[:0])
    padded = wide.new_zeros(most, per_sample, *sides, channels)  # channels last: quicker to copy
    inside = padded[(slice(None), slice(None), *(axis.inside for axis in axes))]
    windows = _view_windows(padded.flatten(0, 1), axes, by_channel=by_channel)
    copied = windows.new_empty(windows.shape)
    patches = copied.view(most, per_sample * positions, width)
    images = images.movedim(2, -1)
    for samples in chunks:
        some = images[samples]
        count = some.shape[0]
        inside[:count].copy_(some)
        copied.copy_(windows)
        yield samples, patches[:count]


def _patches_by_tap(images: Tensor, axes: Sequence[_Axis]) -> Iterator[tuple[slice, Tensor]]:
    """As :func:`_patches`, of ``images[B, 1, C, ...]`` in one or two dimensions, by channel.

    In memory positions come last. The taps of a kernel's row are told apart first: for those of a
    column there are whole blocks of rows to copy then.
    """
    batch, _, channels = images.shape[:3]
    outer, inner = [_Axis(1, 0, 1, 1, 1, 1), *axes][-2:]
    positions, width = outer.grid * inner.grid, channels * outer.kernel * inner.kernel
    most, chunks = _chunks(batch, positions * width)
    images = images.reshape(batch, channels, outer.size, inner.size)
    wide = to_float32(images[:0])
    padded = wide.new_zeros(most, channels, outer.side, inner.side)
    inside = padded[:, :, outer.inside, inner.inside]
    lanes = padded.unflatten(3, (inner.lane, inner.stride)).movedim(-1, 2)
    split = lanes if inner.stride == 1 else lanes.new_empty(lanes.shape)
    by_row = wide.new_empty(most, channels, inner.kernel, outer.stride, outer.lane, inner.grid)
    by_tap = wide.new_empty(most, channels, outer.kernel, inner.kernel, positions)
    copies = [] if inner.stride == 1 else [(split, lanes)]
    sample, channel, along, row, _ = split.stride()
    for taps, lane, begin, apart in inner.taps():
        part = by_row[:, :, taps]
        strides = [sample, channel, apart, row, row * outer.stride, 1]
        copies.append((part, split.as_strided(part.shape, strides, lane * along + begin)))
    sample, channel, tap, along, row, _ = by_row.stride()
    for taps, lane, begin, apart in outer.taps():
        part = by_tap[:, :, taps]
        strides = [sample, channel, apart * row, tap, 1]
        copies.append((part, by_row.as_strided(part.shape, strides, lane * along + begin * row)))
    patches = by_tap.view(most, width, positions).mT
    for samples in chunks:
        some = images[samples]
        count = some.shape[0]
        inside[:count].copy_(some)
        for part, source in copies:
            part.copy_(source)
        yield samples, patches[:count]


def _view_windows(padded: Tensor, axes: Sequence[_Axis], *, by_channel: bool) -> Tensor:
    """The patches as a view: ``[N, *grid, *kernel, C]``, or ``[N, *grid, C, *kernel]``."""
    first, *spatial, last = padded.stride()
    steps = [stride * axis.stride for stride, axis in zip(spatial, axes, strict=True)]
    taps = [stride * axis.dilation for stride, axis in zip(spatial, axes, strict=True)]
    images, channels = padded.shape[0], padded.shape[-1]
    grid, kernel = [axis.grid for axis in axes], [axis.kernel for axis in axes]
    if by_channel:
        size = (images, *grid, channels, *kernel)
        return padded.as_strided(size, (first, *steps, last, *taps))
    return padded.as_strided((images, *grid, *kernel, channels), (first, *steps, *taps, last))


def _rows(maps: Tensor) -> Tensor:
    """``[B, K, C, ...]`` as ``[B, C, K * positions]``, copied only if it must be."""
    last = maps.movedim(2, -1)
    if last.flatten(2, -2).is_contiguous():
        return last.flatten(1, -2).mT
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
