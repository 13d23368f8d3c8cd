"""Tasks of GLUE, each a folder of TSV files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from quietgrad.data.delimited import tab_separated
from quietgrad.data.folders import class_number, file_in, or_below, text_of
from quietgrad.data.kinds import TextData
from quietgrad.errors import DataError

MnliTest = Literal["matched", "mismatched"]
"""Whether the genres of the test sentences are those of the training sentences."""


@dataclass(frozen=True)
class Task:
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


SST2 = Task("SST-2", ("sentence", "content"), "label", ("0", "1"), ("negative", "positive"))
_QNLI_LABELS = ("entailment", "not_entailment")
QNLI = Task("QNLI", ("question",), "label", _QNLI_LABELS, _QNLI_LABELS, pair="sentence")
QQP = Task(
    "QQP",
    ("question1",),
    "is_duplicate",
    ("0", "1"),
    ("different", "duplicate"),
    pair="question2",
    skip_short=True,  # a few questions with line breaks in them came apart when it was written
)
_MNLI_LABELS = ("entailment", "neutral", "contradiction")
_MNLI = partial(Task, "MNLI", ("sentence1",), "gold_label", _MNLI_LABELS, _MNLI_LABELS, "sentence2")


def mnli_from_folder(folder: Path, test: MnliTest = "matched") -> TextData:
    """MNLI, tested on the genres it is trained on or on others."""
    if test not in ("matched", "mismatched"):
        raise ValueError(f"test={test!r}: expected 'matched' or 'mismatched'")
    return from_folder(folder, task=_MNLI(dev=f"dev_{test}.tsv"))


def from_folder(folder: Path, *, task: Task) -> TextData:
    """Training data from ``train.tsv``; test data from the development file.

    The labels of GLUE's own test files are not public.
    """
    folder = or_below(folder, "train.tsv", task.folder)
    texts, pairs, labels = _read(file_in(folder, "train.tsv"), task)
    test_texts, test_pairs, test_labels = _read(file_in(folder, task.dev), task)
    return TextData(texts, labels, test_texts, test_labels, task.classes, pairs, test_pairs)


def _read(path: Path, task: Task) -> tuple[list[str], list[str] | None, Tensor]:
    wanted: list[str | tuple[str, ...]] = [task.text, task.label]
    wanted += [task.pair] if task.pair else []
    columns = tab_separated(text_of(path), wanted, path, skip_short=task.skip_short)
    texts, labels, *second = columns
    if not texts:
        raise DataError(f"{path} has a header and no rows")
    numbers = [class_number(label, task.labels, str(path)) for label in labels]
    return texts, second[0] if second else None, torch.tensor(numbers)
