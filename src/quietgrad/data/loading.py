"""Data sets as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quietgrad.data import cifar10, fashion_mnist, mnist
from quietgrad.data.fetching import cached_file
from quietgrad.data.sources import source_of
from quietgrad.errors import DataError

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, their labels, test images, their labels."""


@dataclass(frozen=True)
class ImageData:
    """Images ``[N, C, H, W]`` of bytes, and the number of each one's class.

    Attributes:
        train_images: to learn from; private.
        train_labels: theirs.
        test_images: to measure with.
        test_labels: theirs.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


_FROM_PACKAGE: Mapping[str, Callable[[Path], Arrays]] = {
    "mnist": mnist.from_package,
    "fashion-mnist": fashion_mnist.from_package,
    "cifar10": cifar10.from_package,
}
_FROM_FOLDER: Mapping[str, Callable[[Path], Arrays]] = {
    "mnist": mnist.from_folder,
    "fashion-mnist": mnist.from_folder,
    "cifar10": cifar10.from_folder,
}


def load(name: str, folder: str | Path | None = None) -> ImageData:
    """A data set, from the cache or from a folder.

    Args:
        name: of the data set.
        folder: with its usual files; None for what `fetch` has brought.

    Raises:
        DataError: it is not there, or cannot be read.
    """
    source = source_of(name)
    if folder is not None:
        return ImageData(*_FROM_FOLDER[name](Path(folder)))
    path = cached_file(name)
    if path is None:
        raise DataError(
            f"{name} was not fetched yet: run `quietgrad data fetch {name}` ({source.megabytes:g} "
            "MB), or give a folder with its usual files"
        )
    return ImageData(*_FROM_PACKAGE[name](path))
