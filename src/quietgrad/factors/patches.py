"""The patches of images that a convolution's kernel sees, a few samples at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

_CHUNK_FLOATS = 1 << 20  # of patches at a time: they are read again while they are in the cache

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Patches:
    """Patches of ``images[B, K, C, ...]``, those of the K images of a sample after each other.

    Attributes:
        images: what the kernel slides over.
        kernel: its sizes.
        grid: at how many positions it is put, along each dimension.
        stride: from one position to the next.
        padding: zeros on both sides.
        dilation: from one entry of the kernel to the next.
        channels_first: a patch is ``[C, *kernel]``; otherwise ``[*kernel, C]``, quicker to copy.
    """

    images: Tensor
    kernel: Sizes
    grid: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    channels_first: bool = False

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """Some samples, and their patches ``[samples, K * positions, C * kernel]``.

        The patches of one chunk are overwritten by those of the next.
        """
        batch, per_sample, channels = self.images.shape[:3]
        width, positions = channels * math.prod(self.kernel), math.prod(self.grid)
        most = max(1, min(batch, _CHUNK_FLOATS // max(1, per_sample * positions * width)))
        padded = self._padded(most * per_sample)
        windows = self._windows(padded)
        room = windows.new_empty(windows.shape)
        inside = tuple(
            slice(p, p + size) for p, size in zip(self.padding, self.images.shape[3:], strict=True)
        )
        for start in range(0, batch, most):
            count = min(most, batch - start)
            samples = slice(start, start + count)
            used = count * per_sample
            images = self.images[samples].flatten(0, 1).movedim(1, -1)
            padded[(slice(used), *inside)].copy_(images)
            room[:used].copy_(windows[:used])
            yield samples, room[:used].view(count, per_sample * positions, width)

    def _padded(self, images: int) -> Tensor:
        """Room for so many images with channels last, zero at the borders."""
        reach = [
            (g - 1) * s + (k - 1) * d + 1
            for g, s, k, d in zip(self.grid, self.stride, self.kernel, self.dilation, strict=True)
        ]
        sides = [
            max(need, size + 2 * p)
            for need, size, p in zip(reach, self.images.shape[3:], self.padding, strict=True)
        ]
        return self.images.new_zeros(images, *sides, self.images.shape[2])

    def _windows(self, padded: Tensor) -> Tensor:
        """The patches as a view: ``[N, *grid, *kernel, C]`` or ``[N, *grid, C, *kernel]``."""
        first, *spatial, last = padded.stride()
        steps = [stride * s for stride, s in zip(spatial, self.stride, strict=True)]
        taps = [stride * d for stride, d in zip(spatial, self.dilation, strict=True)]
        channels = padded.shape[-1]
        if self.channels_first:
            size = (padded.shape[0], *self.grid, channels, *self.kernel)
            return padded.as_strided(size, (first, *steps, last, *taps))
        size = (padded.shape[0], *self.grid, *self.kernel, channels)
        return padded.as_strided(size, (first, *steps, *taps, last))


def laid_out_last(images: Tensor) -> bool:
    """Whether the channels of ``images[N, C, ...]`` are next to each other in memory."""
    return images.shape[1] > 1 and images.movedim(1, -1).is_contiguous()
