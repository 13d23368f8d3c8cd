"""SVHN: house numbers, as MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.folders import file_in
from quietgrad.data.kinds import ImageData
from quietgrad.errors import DataError

_SIDE, _CHANNELS = 32, 3


def from_folder(folder: Path) -> ImageData:
    """Images and labels from ``train_32x32.mat`` and ``test_32x32.mat``."""
    train, test = (_read(file_in(folder, f"{part}_32x32.mat")) for part in ("train", "test"))
    return ImageData(*train, *test)


def _read(path: Path) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat  # slow to import: only when needed

    try:
        found = loadmat(path, variable_names=["X", "y"])
        images, labels = found["X"], found["y"].ravel()
    except Exception as error:  # a damaged file can fail anywhere in the parser
        raise DataError(f"{path} has no X and y in MATLAB's format: {error!r}") from error
    if images.dtype != np.uint8 or images.shape != (_SIDE, _SIDE, _CHANNELS, len(labels)):
        raise DataError(
            f"{path}: X is {images.dtype} {images.shape}, expected uint8 "
            f"{(_SIDE, _SIDE, _CHANNELS, len(labels))}"
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: y has labels other than 1 to 10")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64) % 10)  # 10 means 0
