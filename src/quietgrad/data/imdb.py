"""IMDB's movie reviews: one CSV file in a package, a file for each review in a folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from quietgrad.data.archives import member
from quietgrad.data.delimited import comma_separated
from quietgrad.data.folders import class_number, decoded, or_below, text_of
from quietgrad.data.kinds import TextData
from quietgrad.errors import DataError

CLASSES = ("negative", "positive")
_CSV = "data/raw/a1_IMDB_Dataset.csv"
_SHORT = {"neg": 0, "pos": 1}


def from_package(archive: Path) -> TextData:
    """All 50,000 reviews. The file has lost the official split: `is_for_tests` makes another."""
    text = decoded(member(archive, _CSV), _CSV)
    reviews, sentiments = comma_separated(text, ("review", "sentiment"), _CSV)
    labels = [class_number(sentiment, CLASSES, _CSV) for sentiment in sentiments]
    rows = list(zip(reviews, labels, strict=True))
    train = [row for row in rows if not is_for_tests(row[0])]
    test = [row for row in rows if is_for_tests(row[0])]
    return _together(train, test)


def from_folder(folder: Path) -> TextData:
    """The official split, from ``train/pos/*.txt`` and so on."""
    folder = or_below(folder, "train", "aclImdb")
    return _together(_reviews(folder / "train"), _reviews(folder / "test"))


def is_for_tests(review: str) -> bool:
    """Half of all reviews, by the last bit of their SHA-256.

    A review's side depends on nothing but its own text: equal reviews are never on both sides, and
    one review more or less moves no other.
    """
    return bool(hashlib.sha256(review.encode()).digest()[-1] & 1)


def _reviews(folder: Path) -> list[tuple[str, int]]:
    rows = [
        (text_of(path), label)
        for name, label in _SHORT.items()
        for path in sorted((folder / name).glob("*.txt"))
    ]
    if {label for _, label in rows} != set(_SHORT.values()):
        raise DataError(f"{folder} does not hold reviews: expected neg/*.txt and pos/*.txt")
    return rows


def _together(train: list[tuple[str, int]], test: list[tuple[str, int]]) -> TextData:
    return TextData(
        [text for text, _ in train],
        torch.tensor([label for _, label in train]),
        [text for text, _ in test],
        torch.tensor([label for _, label in test]),
        CLASSES,
    )
