"""The E2E restaurant data: attributes of a restaurant, and sentences that say them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from quietgrad.data.delimited import comma_separated
from quietgrad.data.folders import file_in, text_of
from quietgrad.data.kinds import PairData
from quietgrad.errors import DataError

E2eTraining = Literal["trainset", "devset"]
"""Which file to learn from: the large one, or the small one that often comes alone."""


def from_folder(folder: Path, train: E2eTraining = "trainset") -> PairData:
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
