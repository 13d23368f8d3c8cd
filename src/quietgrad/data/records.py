"""What a loaded data set consists of, and the checks that make it fit for training.

``train`` is private and learned from; ``test`` is held out and measured with.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from quietgrad.errors import DataError


@dataclass(frozen=True)
class ImageData:
    """Images ``[N, C, H, W]`` of bytes, and the number of each one's class.

    Attributes:
        train_images: private.
        train_labels: private, ``[N]``.
        test_images: held out.
        test_labels: held out.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class TextData:
    """Texts, and the number of each one's class.

    Attributes:
        train_texts: private.
        train_labels: private, ``[N]``.
        test_texts: held out.
        test_labels: held out.
        classes: names of the classes, by number.
        train_pairs: the second text of each sample, for tasks on pairs; None otherwise.
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
        train_categories: ``[N, categories]``, each from 0 to its size - 1; private.
        train_labels: ``[N]``; private.
        test_numbers: held out.
        test_categories: held out.
        test_labels: held out.
        number_names: names of the columns of numbers.
        category_names: names of the columns of categories.
        category_sizes: number of categories of each such column.
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
class RatingData:
    """Ratings of things by people, of whom some are held out with all of their ratings.

    Numbers are in ``[0, 1]``, and categories are counted by what the data set's description says.

    Attributes:
        train_users: whose rating each is, ``[N]``; private.
        train_numbers: of the person and of what is rated, ``[N, numbers]``; private.
        train_categories: likewise, ``[N, categories]``; private.
        train_ratings: ``[N]``, from 1 on; private.
        test_users: held out, and so are the columns that follow.
        test_numbers: likewise.
        test_categories: likewise.
        test_ratings: likewise.
        number_names: names of the columns of numbers.
        category_names: names of the columns of categories.
        category_sizes: number of categories of each such column.
    """

    train_users: Tensor
    train_numbers: Tensor
    train_categories: Tensor
    train_ratings: Tensor
    test_users: Tensor
    test_numbers: Tensor
    test_categories: Tensor
    test_ratings: Tensor
    number_names: tuple[str, ...]
    category_names: tuple[str, ...]
    category_sizes: tuple[int, ...]


@dataclass(frozen=True)
class PairData:
    """Meaning representations and the texts that express them.

    Attributes:
        train_meanings: private, one for each reference.
        train_references: private, one text for each meaning.
        test_meanings: held out, each one once.
        test_references: held out, all texts of each meaning.
    """

    train_meanings: list[str]
    train_references: list[str]
    test_meanings: list[str]
    test_references: list[list[str]]


@dataclass(frozen=True)
class RawText:
    """Running text.

    Attributes:
        train: private.
        valid: for model selection.
        test: held out.
    """

    train: str
    valid: str
    test: str


AnyData = ImageData | TextData | TableData | RatingData | PairData | RawText

Part = Literal["train", "test"]
_PART_NAMES: dict[Part, str] = {"train": "training", "test": "test"}
_FEW_COPIES = 0.01  # of the test records: real data sets have so many, by chance


def require_sound(found: AnyData, where: str) -> None:
    """Refuse data that nothing can be learned from, or whose test records are training records.

    Raises:
        DataError: a part is empty, its columns differ in length, or more than half of the test
            records are training records. Of more than a few it warns.
    """
    for part in _PART_NAMES:
        _require_rows(found, part, where)
    seen, tests = count_copies(found)
    says = f"{where}: {seen:,} of {tests:,} test records are training records, byte for byte."
    if 2 * seen > tests:
        raise DataError(
            f"{says} Scores of test records are shown without noise, so these would be exact "
            "figures of private records: give test files with records that are held out"
        )
    if seen > _FEW_COPIES * tests:
        warnings.warn(
            f"{says} Scores of test records are shown without noise, and reveal something about "
            "these",
            stacklevel=3,
        )


def count_copies(found: AnyData) -> tuple[int, int]:
    """How many test records are training records, byte for byte, and how many there are."""
    known = set(_records(found, "train"))
    tests = _records(found, "test")
    return sum(record in known for record in tests), len(tests)


def _require_rows(found: AnyData, part: Part, where: str) -> None:
    sizes = {name: len(column) for name, column in _columns(found, part).items()}
    first = next(iter(sizes))
    if not sizes[first]:
        raise DataError(f"{where} has no {_PART_NAMES[part]} {first}: expected at least one")
    if len(set(sizes.values())) > 1:
        found_sizes = " and ".join(f"{size:,} {name}" for name, size in sizes.items())
        raise DataError(
            f"{where} has {found_sizes} for {'training' if part == 'train' else 'tests'}: expected "
            "as many of each. A file was cut, or belongs to other files"
        )


def _columns(found: AnyData, part: Part) -> dict[str, Any]:
    """The columns of a part by name: images and labels, for example."""
    if isinstance(found, RawText):
        return {"text": getattr(found, part).strip()}
    return {
        name.removeprefix(f"{part}_"): column
        for name, column in vars(found).items()
        if name.startswith(f"{part}_") and column is not None
    }


def _records(found: AnyData, part: Part) -> Sequence[Hashable]:
    """What identifies each record. Labels are left out: a wrong one must not hide a copy."""
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
            if part == "train":
                return list(zip(found.train_meanings, found.train_references, strict=True))
            grouped = zip(found.test_meanings, found.test_references, strict=True)
            return [(meaning, text) for meaning, texts in grouped for text in texts]
        case RatingData():
            # People who are alike may rate the same film.
            users = columns["users"].unsqueeze(1)
            return _digests(users, columns["numbers"], columns["categories"])
        case _:
            return _digests(columns["numbers"], columns["categories"])


def _digests(*columns: Tensor) -> list[bytes]:
    """SHA-256 of each row."""
    rows = [each.contiguous().flatten(1).view(torch.uint8).numpy() for each in columns]
    return [hashlib.sha256(b"".join(parts)).digest() for parts in zip(*rows, strict=True)]
