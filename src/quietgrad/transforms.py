"""Random changes of images ``[N, C, H, W]``, each image in its own way.

They draw from torch's global generator: what they draw is no secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad._checks import require_count, require_positive, require_rate


@dataclass(frozen=True)
class Flip:
    """Left and right are exchanged.

    Args:
        probability: of each image to be flipped.
    """

    probability: float = 0.5

    def __post_init__(self) -> None:
        require_rate("probability", self.probability)

    def __call__(self, images: Tensor) -> Tensor:
        """The images, some of them flipped."""
        _require_images(images)
        chosen = torch.rand(len(images), device=images.device) < self.probability
        return torch.where(chosen[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True)
class Crop:
    """A window of the same size, moved by a few pixels; beyond the border the image is mirrored.

    Args:
        pixels: how far it may move in each direction.
    """

    pixels: int = 4

    def __post_init__(self) -> None:
        require_count("pixels", self.pixels, at_least=1)

    def __call__(self, images: Tensor) -> Tensor:
        """The windows."""
        _require_images(images)
        count, channels, height, width = images.shape
        if self.pixels >= min(height, width):
            raise ValueError(f"pixels={self.pixels}: expected less than {min(height, width)}")
        padded = F.pad(images, [self.pixels] * 4, mode="reflect")
        down, right = torch.randint(2 * self.pixels + 1, (2, count, 1), device=images.device)
        rows = down + torch.arange(height, device=images.device)
        columns = right + torch.arange(width, device=images.device)
        image = torch.arange(count, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


@dataclass(frozen=True)
class Erase:
    """A rectangle is set to zero (Zhong et al. 2020).

    Args:
        probability: of each image to lose one.
        share: the least and the most of the image that it covers.
        elongation: its sides differ by up to this factor.
    """

    probability: float = 0.5
    share: tuple[float, float] = (0.02, 0.33)
    elongation: float = 3.0

    def __post_init__(self) -> None:
        require_rate("probability", self.probability)
        least, most = self.share
        if not 0 < least <= most <= 1:
            raise ValueError(f"share={self.share!r}: expected two numbers, 0 < least <= most <= 1")
        require_positive("elongation", self.elongation)

    def __call__(self, images: Tensor) -> Tensor:
        """The images, some of them with a rectangle of zeros."""
        _require_images(images)
        count, _, height, width = images.shape
        draws = torch.rand(5, count, device=images.device)
        least, most = self.share
        area = (least + (most - least) * draws[0]) * height * width
        ratio = torch.exp((2 * draws[1] - 1) * math.log(max(self.elongation, 1 / self.elongation)))
        tall = (area * ratio).sqrt().clamp(max=height)
        wide = (area / ratio).sqrt().clamp(max=width)
        rows = _between((height - tall) * draws[2], tall, height)
        columns = _between((width - wide) * draws[3], wide, width)
        chosen = draws[4] < self.probability
        erased = chosen[:, None, None] & rows[:, :, None] & columns[:, None, :]
        return images.masked_fill(erased[:, None], 0.0)


class Chain:
    """One change after the other.

    Args:
        transforms: in their order.
    """

    def __init__(self, *transforms: Callable[[Tensor], Tensor]) -> None:
        self._transforms: Sequence[Callable[[Tensor], Tensor]] = transforms

    def __call__(self, images: Tensor) -> Tensor:
        """All of them."""
        for transform in self._transforms:
            images = transform(images)
        return images

    def __repr__(self) -> str:
        return f"Chain({', '.join(map(repr, self._transforms))})"


def _between(start: Tensor, length: Tensor, size: int) -> Tensor:
    """Which of so many pixels lie between a start and an end, for each image."""
    places = torch.arange(size, device=start.device) + 0.5
    return (places >= start[:, None]) & (places < (start + length)[:, None])


def _require_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise ValueError(
            f"images of shape {tuple(images.shape)}: expected [N, channels, height, width]"
        )
