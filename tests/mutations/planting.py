"""A fault, and how it is planted into a copy of the library."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "src" / "quietgrad"


@dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        name: for --only and the table.
        what: the mistake in a sentence.
        edits: text and replacement; each text occurs exactly once in the library.
        tests: arguments of pytest that are tried first, before the whole fast suite.
    """

    name: str
    what: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


def make_fault(name: str, what: str, old: str, new: str, tests: str, only: str = "") -> Fault:
    """One of a single edit; of the tests those that match ``only``, if it is given."""
    selection = (*tests.split(), "-k", only) if only else tuple(tests.split())
    return Fault(name, what, ((old, new),), selection)


def read_sources(folder: Path = LIBRARY) -> dict[Path, str]:
    """All of a library."""
    return {path: path.read_text() for path in sorted(folder.rglob("*.py"))}


def edit(sources: Mapping[Path, str], fault: Fault) -> dict[Path, str]:
    """The files that change; ValueError if a text does not occur exactly once."""
    edited = dict(sources)
    for old, new in fault.edits:
        count = sum(text.count(old) for text in edited.values())
        if count != 1:
            raise ValueError(f"not planted: found {count} times, expected once: {old!r}")
        edited = {path: text.replace(old, new) for path, text in edited.items()}
    return {path: text for path, text in edited.items() if text != sources[path]}


def plant(fault: Fault, folder: Path) -> None:
    """Make a copy of the library with the fault."""
    copy = folder / LIBRARY.name
    shutil.copytree(LIBRARY, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in edit(read_sources(copy), fault).items():
        path.write_text(text)
