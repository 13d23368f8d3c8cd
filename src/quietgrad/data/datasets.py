"""Which function reads which data set. A new one takes its place here."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from quietgrad._checks import unknown_name
from quietgrad.data import adult, images, text
from quietgrad.data.base import (
    AnyData,
    ImageData,
    PairData,
    RawText,
    TableData,
    TextData,
    own_folder,
)
from quietgrad.data.fetch import fetched_file
from quietgrad.data.sources import FOLDERS, no_package, note_place
from quietgrad.data.text import E2eTraining, MnliTest
from quietgrad.errors import DataError

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, their labels, test images, their labels."""


def _images(read: Callable[[Path], Arrays]) -> Callable[[Path], ImageData]:
    return lambda path: ImageData(*read(path))


FROM_PACKAGE: Mapping[str, Callable[[Path], AnyData]] = {
    "mnist": _images(images.mnist_from_package),
    "fashion-mnist": _images(images.fashion_mnist_from_package),
    "cifar10": _images(images.cifar10_from_package),
    "imdb": text.imdb_from_package,
    "wikitext-2": text.wikitext_2_from_package,
    "adult": adult.from_package,
}
FROM_FOLDER: Mapping[str, Callable[..., AnyData]] = {
    "mnist": _images(images.mnist_from_folder),
    "fashion-mnist": _images(images.mnist_from_folder),
    "cifar10": _images(images.cifar10_from_folder),
    "imdb": text.imdb_from_folder,
    "wikitext-2": text.wikitext_2_from_folder,
    "adult": adult.from_folder,
    "sst2": partial(text.glue_from_folder, task=text.SST2),
    "qnli": partial(text.glue_from_folder, task=text.QNLI),
    "qqp": partial(text.glue_from_folder, task=text.QQP),
    "mnli": text.mnli_from_folder,
    "e2e": text.e2e_from_folder,
    "svhn": images.svhn_from_folder,
    "cifar100": images.cifar100_from_folder,
    "imagenette": images.imagenette_from_folder,
    "celeba": images.celeba_from_folder,
}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "mnli": ("test",),
    "e2e": ("train",),
    "imagenette": ("size",),
    "celeba": ("size", "attribute"),
}


Part = Literal["train", "test"]
_FEW = 0.01  # of the test records: so many are in real data sets, by chance
_IN_WORDS: dict[Part, str] = {"train": "training", "test": "test"}


def require_sound(found: AnyData, where: str) -> None:
    """Refuse data that nothing can be learnt from, or that would be measured on itself.

    Args:
        found: the data.
        where: it comes from.

    Raises:
        DataError: a part is empty, its columns are not of one length, or more than half of the
            test records are training records. Of more than a few it warns.
    """
    for part in _IN_WORDS:
        _require_rows(found, part, where)
    seen, tests = known_tests(found)
    if 2 * seen > tests:
        raise DataError(
            f"{where}: {seen:,} of {tests:,} test records are training records, byte for byte."
            " Scores of test records are shown without noise, so these would be exact figures of "
            "private records: give test files with records that are held out"
        )
    if seen > _FEW * tests:
        warnings.warn(
            f"{where}: {seen:,} of {tests:,} test records are training records, byte for byte. "
            "Scores of test records are shown without noise, and tell something of these",
            stacklevel=3,
        )


def known_tests(found: AnyData) -> tuple[int, int]:
    """How many test records are training records, byte for byte, and how many there are."""
    known = set(_records(found, "train"))
    tests = _records(found, "test")
    return sum(record in known for record in tests), len(tests)


def _require_rows(found: AnyData, part: Part, where: str) -> None:
    sizes = {name: len(column) for name, column in _columns(found, part).items()}
    first = next(iter(sizes))
    if not sizes[first]:
        raise DataError(f"{where} has no {_IN_WORDS[part]} {first}: expected at least one")
    if len(set(sizes.values())) > 1:
        found_sizes = " and ".join(f"{size:,} {name}" for name, size in sizes.items())
        raise DataError(
            f"{where} has {found_sizes} for {'training' if part == 'train' else 'tests'}: expected "
            "as many of each. A file was cut, or belongs to other files"
        )


def _columns(found: AnyData, part: Part) -> dict[str, Any]:
    """All there is of a part, by the names of the fields: images and labels, say."""
    if isinstance(found, RawText):
        return {"text": getattr(found, part).strip()}
    return {
        name.removeprefix(f"{part}_"): column
        for name, column in vars(found).items()
        if name.startswith(f"{part}_") and column is not None
    }


def _records(found: AnyData, part: Part) -> Sequence[Hashable]:
    """What tells one record from another, without its label: a wrong one would not hide a copy."""
    columns = _columns(found, part)
    match found:
        case ImageData():
            return _digests(columns["images"])
        case RawText():
            return [line for line in getattr(found, part).splitlines() if line.strip()]
        case TextData():
            texts = columns["texts"]
            return list(zip(texts, columns.get("pairs", texts), strict=True))
        case PairData():
            return _pairs(found, part)
        case _:
            return _digests(columns["numbers"], columns["categories"])


def _pairs(found: PairData, part: Part) -> list[tuple[str, str]]:
    if part == "train":
        return list(zip(found.train_meanings, found.train_references, strict=True))
    grouped = zip(found.test_meanings, found.test_references, strict=True)
    return [(meaning, text) for meaning, texts in grouped for text in texts]


def _digests(*columns: Tensor) -> list[bytes]:
    """One for each row: as sure as its bytes, and much smaller."""
    rows = [each.contiguous().flatten(1).view(torch.uint8).numpy() for each in columns]
    return [hashlib.sha256(b"".join(parts)).digest() for parts in zip(*rows, strict=True)]


Images = Literal["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"]
Texts = Literal["imdb", "sst2", "qnli", "qqp"]
Folder = str | Path | None


@overload
def load(name: Images, folder: Folder = None) -> ImageData: ...
@overload
def load(name: Literal["imagenette"], folder: Folder = None, *, size: int = 128) -> ImageData: ...
@overload
def load(
    name: Literal["celeba"], folder: Folder = None, *, size: int = 64, attribute: str = "Smiling"
) -> ImageData: ...
@overload
def load(name: Texts, folder: Folder = None) -> TextData: ...
@overload
def load(
    name: Literal["mnli"], folder: Folder = None, *, test: MnliTest = "matched"
) -> TextData: ...
@overload
def load(name: Literal["adult"], folder: Folder = None) -> TableData: ...
@overload
def load(
    name: Literal["e2e"], folder: Folder = None, *, train: E2eTraining = "trainset"
) -> PairData: ...
@overload
def load(name: Literal["wikitext-2"], folder: Folder = None) -> RawText: ...
@overload
def load(name: str, folder: Folder = None, **options: Any) -> Any: ...


def load(name: str, folder: Folder = None, **options: Any) -> AnyData:
    """A data set, from a folder or from the cache.

    Args:
        name: of the data set.
        folder: with its usual files. None for ``$QUIETGRAD_DATA/<name>`` if there is such a
            folder, and what `fetch` has brought otherwise.
        options: ``size`` of the images of imagenette and celeba, ``attribute`` of celeba,
            ``test="mismatched"`` for mnli, ``train="devset"`` for e2e.

    Raises:
        DataError: it is not there, cannot be read, or its test records are training records.
        ValueError: there is no data set of that name, or it does not know the option.
    """
    _require_known(name, options)
    chosen = Path(folder) if folder is not None else own_folder(name)
    if chosen is not None:
        found = FROM_FOLDER[name](chosen, **options)
    elif name in FOLDERS:
        raise DataError(no_package(FOLDERS[name]))
    else:
        found = FROM_PACKAGE[name](fetched_file(name))
    require_sound(found, name if chosen is None else f"{name} in {chosen}")
    note_place(name, chosen)
    return found


def _require_known(name: str, options: dict[str, Any]) -> None:
    if name not in FROM_FOLDER:
        raise unknown_name("data set", name, FROM_FOLDER)
    known = OPTIONS.get(name, ())
    unknown = [option for option in options if option not in known]
    if unknown:
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        raise ValueError(f"{name} does not take {', '.join(unknown)}: it {takes}")
