"""CelebA: faces, and whether each has one attribute."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from quietgrad.data.folders import file_in, text_of
from quietgrad.data.kinds import ImageData
from quietgrad.data.pictures import pictures
from quietgrad.errors import DataError

_TRAIN, _VALID, _TEST = "012"
_HAS = {"-1": 0, "1": 1}


def from_folder(folder: Path, size: int = 64, attribute: str = "Smiling") -> ImageData:
    """The official training and test images, labelled 1 where they have the attribute."""
    labels = _labels(file_in(folder, "list_attr_celeba.txt"), attribute)
    parts = _parts(file_in(folder, "list_eval_partition.txt"))
    images = folder / "img_align_celeba"
    if not images.is_dir():
        raise DataError(f"{images} is not a folder: expected CelebA's aligned JPEG files in it")
    train, test = (_read(images, labels, parts, part, size) for part in (_TRAIN, _TEST))
    return ImageData(*train, *test)


def _read(
    folder: Path, labels: dict[str, int], parts: dict[str, str], part: str, size: int
) -> tuple[Tensor, Tensor]:
    names = [name for name, found in parts.items() if found == part]
    if not names:
        raise DataError(f"list_eval_partition.txt has no images of part {part}")
    unknown = [name for name in names if name not in labels]
    if unknown:
        raise DataError(f"list_attr_celeba.txt does not have {unknown[0]}")
    return pictures([folder / name for name in names], size), torch.tensor(
        [labels[name] for name in names]
    )


def _labels(path: Path, attribute: str) -> dict[str, int]:
    """A count, a line of the attributes' names, then a line for each image."""
    lines = text_of(path).splitlines()
    names = lines[1].split() if len(lines) > 1 else []
    if attribute not in names:
        raise DataError(f"{path} has no attribute {attribute!r}: only {', '.join(names) or 'none'}")
    column = names.index(attribute)
    found: dict[str, int] = {}
    for line in filter(str.strip, lines[2:]):
        image, *values = line.split()
        if len(values) != len(names) or values[column] not in _HAS:
            raise DataError(
                f"{path}: the line of {image} is not {len(names)} values of 1 and -1: it was cut, "
                "or is another file"
            )
        found[_plain(image, path)] = _HAS[values[column]]
    if str(len(found)) != lines[0].strip():
        raise DataError(f"{path} has {len(found)} images: its first line says {lines[0].strip()}")
    return found


def _parts(path: Path) -> dict[str, str]:
    rows = [line.split() for line in text_of(path).splitlines()]
    for row in rows:
        if len(row) != 2 or row[1] not in (_TRAIN, _VALID, _TEST):
            raise DataError(f"{path} has the line {' '.join(row)!r}: expected an image and 0, 1, 2")
    return {_plain(image, path): part for image, part in rows}


def _plain(name: str, path: Path) -> str:
    """A name that stays within its folder."""
    if Path(name).name != name:
        raise DataError(f"{path} names {name!r}: expected names of files without folders")
    return name
