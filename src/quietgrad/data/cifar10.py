"""CIFAR-10: as pictures of all images in a package, as binary batches in a folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.archives import member
from quietgrad.errors import DataError, MissingExtraError

_SIDE, _CHANNELS, _CLASSES = 32, 3, 10
_ROW = 1 + _CHANNELS * _SIDE**2


def from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    batches = [_from_picture(archive, f"data_batch_{number}") for number in range(1, 6)]
    return (
        torch.cat(batches),
        _from_json(archive, "train_lables.json"),  # spelled like this there
        _from_picture(archive, "test_batch"),
        _from_json(archive, "test_lables.json"),
    )


def from_folder(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from ``data_batch_1.bin`` and so on, the binary version of the data set."""
    if not (folder / "test_batch.bin").is_file() and (folder / "cifar-10-batches-bin").is_dir():
        folder = folder / "cifar-10-batches-bin"
    batches = [_from_binary(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    images, labels = (torch.cat(column) for column in zip(*batches, strict=True))
    return images, labels, *_from_binary(folder / "test_batch.bin")


def _from_picture(archive: Path, name: str) -> Tensor:
    """One image in each row of pixels."""
    try:
        from PIL import Image  # an extra: only when needed
    except ImportError as error:
        raise MissingExtraError("pillow", "recipes") from error
    try:
        content = member(archive, f"package/{name}.png")
        with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise DataError(f"{name}.png of {archive} is not a whole picture: {error}") from error
    if pixels.shape[1:] != (_SIDE**2, _CHANNELS):
        raise DataError(f"{name}.png is {pixels.shape}: expected rows of {_SIDE**2} pixels")
    images = torch.from_numpy(pixels.copy()).view(-1, _SIDE, _SIDE, _CHANNELS)
    return images.permute(0, 3, 1, 2).contiguous()


def _from_json(archive: Path, name: str) -> Tensor:
    try:
        labels = json.loads(member(archive, f"package/{name}"))
        return torch.tensor([int(label) for label in labels])
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} of {archive} is not a list of labels: {error}") from error


def _from_binary(path: Path) -> tuple[Tensor, Tensor]:
    if not path.is_file():
        raise DataError(f"{path.name} is not in {path.parent}: expected CIFAR-10's binary version")
    table = np.fromfile(path, np.uint8)
    if not table.size or table.size % _ROW:
        raise DataError(f"{path} is not rows of {_ROW} bytes: it was cut, or is another file")
    rows = torch.from_numpy(table).view(-1, _ROW)
    if int(rows[:, 0].max()) >= _CLASSES:
        raise DataError(f"{path} has label {int(rows[:, 0].max())}: expected less than {_CLASSES}")
    return rows[:, 1:].reshape(-1, _CHANNELS, _SIDE, _SIDE).contiguous(), rows[:, 0].long()
