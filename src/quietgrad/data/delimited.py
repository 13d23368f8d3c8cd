"""Tables as text: columns by their names, every row checked."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

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
