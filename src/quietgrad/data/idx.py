"""The idx format of MNIST's files: a number for the kind, the shape, then bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.errors import DataError

_SIDE, _CLASSES = 28, 10
_IMAGES, _LABELS = 2051, 2049  # what files of each begin with
_KINDS = {_IMAGES: ("images", 3), _LABELS: ("labels", 1)}  # and how many dimensions they have


Content = Callable[[str], tuple[bytes, Path | str]]
"""What a file of this name holds, and where that was found."""


def both_parts(content: Content) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests, from four files of the usual names."""
    return *_part(content, "train"), *_part(content, "t10k")


def _part(content: Content, name: str) -> tuple[Tensor, Tensor]:
    pixels = images(*content(f"{name}-images-idx3-ubyte"))
    return pixels, labels(*content(f"{name}-labels-idx1-ubyte"), count=len(pixels))


def images(content: bytes, where: Path | str) -> Tensor:
    """Images ``[N, 1, 28, 28]``.

    Raises:
        DataError: it is not a whole file of them, or there are none.
    """
    pixels = _parsed(content, _IMAGES, where)
    if not len(pixels):
        raise DataError(f"{where} has no images: expected at least one")
    if pixels.shape[1:] != (_SIDE, _SIDE):
        sides = "x".join(map(str, pixels.shape[1:]))
        raise DataError(f"{where} has images of {sides} pixels: expected {_SIDE}x{_SIDE}")
    return torch.from_numpy(pixels.copy())[:, None]


def labels(content: bytes, where: Path | str, *, count: int) -> Tensor:
    """The labels of so many images.

    Raises:
        DataError: it is not a whole file of them, there are more or fewer, or one is unknown.
    """
    numbers = _parsed(content, _LABELS, where)
    if len(numbers) != count:
        raise DataError(
            f"{where} has {len(numbers):,} labels: expected {count:,}, one for each image"
        )
    if numbers.max() >= _CLASSES:
        raise DataError(f"{where} has label {numbers.max()}: expected 0 to {_CLASSES - 1}")
    return torch.from_numpy(numbers.astype(np.int64))


def _parsed(content: bytes, expected: int, where: Path | str) -> np.ndarray:
    kind, dimensions = _KINDS[expected]
    begins = struct.unpack(">i", content[:4])[0] if len(content) >= 4 else "nothing"
    if begins != expected:
        other = f", as files of {_KINDS[begins][0]} do" if begins in _KINDS else ""
        raise DataError(
            f"{where} is not an idx file of {kind}: it begins with {begins}{other}, expected "
            f"{expected}"
        )
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{where} ends within its header: it was cut")
    shape = struct.unpack(f">{dimensions}i", content[4:start])
    values = np.frombuffer(content, np.uint8, offset=start)
    if min(shape) < 0 or values.size != np.prod(shape):
        raise DataError(f"{where} says shape {shape} and has {values.size:,} values: it was cut")
    return values.reshape(shape)
