"""What every data set must be, whatever its format: not empty, in step, its tests held out."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Hashable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from quietgrad.data.kinds import AnyData, ImageData, PairData, RawText, TextData
from quietgrad.errors import DataError

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
