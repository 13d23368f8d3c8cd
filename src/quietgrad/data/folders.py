"""A data set's usual files in a folder of the user's own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from quietgrad.errors import DataError


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
