"""CIFAR-100 in its binary version: the fine label of each image, one of a hundred."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.folders import file_in, or_below
from quietgrad.data.kinds import ImageData
from quietgrad.errors import DataError

_SIDE, _CHANNELS, _CLASSES = 32, 3, 100
_ROW = 2 + _CHANNELS * _SIDE**2  # the coarse label, the fine one, the pixels


def from_folder(folder: Path) -> ImageData:
    """Images and labels from ``train.bin`` and ``test.bin``."""
    folder = or_below(folder, "train.bin", "cifar-100-binary")
    train, test = (_read(file_in(folder, f"{part}.bin")) for part in ("train", "test"))
    return ImageData(*train, *test)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    table = np.fromfile(path, np.uint8)
    if not table.size or table.size % _ROW:
        raise DataError(f"{path} is not rows of {_ROW} bytes: it was cut, or is another file")
    rows = torch.from_numpy(table).view(-1, _ROW)
    labels = rows[:, 1].long()
    if int(labels.max()) >= _CLASSES:
        raise DataError(f"{path} has label {int(labels.max())}: expected less than {_CLASSES}")
    return rows[:, 2:].reshape(-1, _CHANNELS, _SIDE, _SIDE).contiguous(), labels
