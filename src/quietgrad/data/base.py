"""What a data set is once it is loaded: images, texts, a table, pairs, or running text.

What is called ``train`` is to learn from, and private; what is called ``test`` is to measure with.
"""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from quietgrad.errors import DataError


@dataclass(frozen=True)
class ImageData:
    """Images ``[N, C, H, W]`` of bytes, and the number of each one's class.

    Attributes:
        train_images: to learn from; private.
        train_labels: theirs.
        test_images: to measure with.
        test_labels: theirs.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class TextData:
    """Texts, and the number of each one's class.

    Attributes:
        train_texts: to learn from; private.
        train_labels: theirs, ``[N]``.
        test_texts: to measure with.
        test_labels: theirs.
        classes: what the numbers mean.
        train_pairs: the second text of each, if the task is about two; otherwise None.
        test_pairs: likewise.
    """

    train_texts: list[str]
    train_labels: Tensor
    test_texts: list[str]
    test_labels: Tensor
    classes: tuple[str, ...]
    train_pairs: list[str] | None = None
    test_pairs: list[str] | None = None


@dataclass(frozen=True)
class TableData:
    """Rows of numbers and of categories, and the number of each one's class.

    Numbers are scaled to ``[0, 1]`` and categories are counted by what the data set's description
    says of them, never by what is in the rows: statistics of private rows are not public.

    Attributes:
        train_numbers: ``[N, numbers]``; private.
        train_categories: ``[N, categories]``, each from 0 to its size less 1; private.
        train_labels: ``[N]``; private.
        test_numbers: to measure with.
        test_categories: likewise.
        test_labels: likewise.
        number_names: of the columns of numbers.
        category_names: of the columns of categories.
        category_sizes: how many categories each of those has.
    """

    train_numbers: Tensor
    train_categories: Tensor
    train_labels: Tensor
    test_numbers: Tensor
    test_categories: Tensor
    test_labels: Tensor
    number_names: tuple[str, ...]
    category_names: tuple[str, ...]
    category_sizes: tuple[int, ...]


@dataclass(frozen=True)
class PairData:
    """Meanings and the texts that say them.

    Attributes:
        train_meanings: to learn from, one for each reference; private.
        train_references: a text for each of them; private.
        test_meanings: to measure with, each one once.
        test_references: all texts for each of them.
    """

    train_meanings: list[str]
    train_references: list[str]
    test_meanings: list[str]
    test_references: list[list[str]]


@dataclass(frozen=True)
class RawText:
    """Running text.

    Attributes:
        train: to learn from; private.
        valid: to choose by.
        test: to measure with.
    """

    train: str
    valid: str
    test: str


AnyData = ImageData | TextData | TableData | PairData | RawText


def own_folder(name: str) -> Path | None:
    """Where the user keeps a data set: ``$QUIETGRAD_DATA/<name>``, if there is such a folder."""
    root = os.environ.get("QUIETGRAD_DATA")
    folder = Path(root) / name if root else None
    return folder if folder is not None and folder.is_dir() else None


def file_in(folder: Path, *names: str) -> Path:
    """The first of these files that is in a folder.

    Raises:
        DataError: none of them is.
    """
    for name in names:
        if (folder / name).is_file():
            return folder / name
    there = "which is not a folder" if not folder.is_dir() else f"only {_some_of(folder)}"
    raise DataError(f"{' or '.join(names)} is not in {folder}, {there}")


def or_below(folder: Path, file: str, usual: str) -> Path:
    """A folder, or the one of this usual name below it if that is where the file is."""
    inside = (folder / usual / file).exists() and not (folder / file).exists()
    return folder / usual if inside else folder


def text_of(path: Path) -> str:
    """A file's text.

    Raises:
        DataError: it is not text.
    """
    return decoded(path.read_bytes(), path)


def decoded(content: bytes, where: Path | str) -> str:
    """Text in UTF-8.

    Raises:
        DataError: it is not.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} is not text in UTF-8 ({error}): it was cut, or is another file"
        ) from error


def class_number(label: str, classes: Sequence[str], where: str) -> int:
    """The number of a class.

    Raises:
        DataError: there is none of that name.
    """
    try:
        return classes.index(label)
    except ValueError:
        raise DataError(
            f"{where} has label {label!r}: expected one of {', '.join(classes)}"
        ) from None


def _some_of(folder: Path, most: int = 5) -> str:
    names = sorted(path.name for path in folder.iterdir())
    shown = ", ".join(names[:most]) or "nothing"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


_DAMAGED = (OSError, EOFError, zlib.error)


def member(archive: Path, name: str) -> bytes:
    """The content of one file in a wheel or a tarball.

    Raises:
        DataError: it is not in there, or the archive is damaged.
    """
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(name)
        with tarfile.open(archive) as tarball:
            stream = tarball.extractfile(name)
            if stream is None:
                raise KeyError(name)
            return stream.read()
    except (KeyError, *_DAMAGED, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{name} cannot be read from {archive}: {error}") from error


def unpacked(content: bytes, where: Path | str) -> bytes:
    """What was packed with gzip.

    Raises:
        DataError: it was not, or is damaged.
    """
    try:
        return gzip.decompress(content)
    except _DAMAGED as error:
        raise DataError(f"{where} is not a whole gzip file: {error}") from error
