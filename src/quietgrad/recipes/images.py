"""Images as recipes want them, real and made."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.recipes.recipe import LoadData, Places, Split

_WHITE = 255.0
_MIDDLE, _SPREAD = 0.5, 0.25  # about what photographs have; constants, so nothing is read from data


def image_split(
    name: str, *, middle: float = _MIDDLE, spread: float = _SPREAD, **options: Any
) -> LoadData:
    """Loads a data set of images.

    Args:
        name: of the data set.
        middle: of what is usual between 0, black, and 1: becomes zero.
        spread: of it: becomes one.
        options: those of `quietgrad.data.load`.
    """

    def load_data(places: Places) -> Split:
        images = data.load(name, places.data, **options)
        scale = partial(scaled, middle=middle, spread=spread)
        return Split(
            train=TensorDataset(scale(images.train_images), images.train_labels),
            test=TensorDataset(scale(images.test_images), images.test_labels),
        )

    return load_data


def scaled(images: Tensor, middle: float = _MIDDLE, spread: float = _SPREAD) -> Tensor:
    """Bytes to about mean zero and variance one, by constants that everybody knows."""
    return images.float().div_(_WHITE).sub_(middle).div_(spread)


def made_images(*shape: int, classes: int = 10, samples: int = 64) -> LoadData:
    """Makes random images with random labels: they teach nothing, and are there at once."""

    def load_data(places: Places) -> Split:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(samples, *shape, generator=generator)
        labels = torch.randint(classes, (samples,), generator=generator)
        return Split(train=TensorDataset(images, labels), test=TensorDataset(images, labels))

    return load_data
