"""Imagenette: ten easy classes of ImageNet, a folder of JPEG files for each."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from quietgrad.data.folders import or_below
from quietgrad.data.kinds import ImageData
from quietgrad.data.pictures import pictures
from quietgrad.errors import DataError

CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


def from_folder(folder: Path, size: int = 128) -> ImageData:
    """Training images from ``train/<class>/*.JPEG``, test images from ``val``."""
    for usual in ("imagenette2", "imagenette2-160", "imagenette2-320"):
        folder = or_below(folder, "train", usual)
    return ImageData(*_read(folder / "train", size), *_read(folder / "val", size))


def _read(folder: Path, size: int) -> tuple[Tensor, Tensor]:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: expected train and val, ten folders in each")
    unknown = sorted({path.name for path in folder.iterdir() if path.is_dir()} - set(CLASSES))
    if unknown:
        raise DataError(f"{folder} holds {', '.join(unknown)}: expected {', '.join(CLASSES)}")
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(CLASSES):
        found = sorted((folder / name).glob("*.JPEG"))
        if not found:
            raise DataError(f"{folder / name} holds no *.JPEG")
        paths += found
        labels += [number] * len(found)
    return pictures(paths, size), torch.tensor(labels)
