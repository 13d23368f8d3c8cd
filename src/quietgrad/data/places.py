"""Which place a data set was taken from: a run that goes on must find the same one there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from quietgrad.data.sources import source_of

_NOTED: ContextVar[list[str] | None] = ContextVar("noted places", default=None)


@contextmanager
def noted_places() -> Iterator[list[str]]:
    """The places that `load` takes data from in this block; empty if it is not called."""
    noted: list[str] = []
    before = _NOTED.set(noted)
    try:
        yield noted
    finally:
        _NOTED.reset(before)


def note_place(name: str, folder: Path | None) -> None:
    """Data set `name` is taken from this folder, or else from its package.

    A folder is noted by its path, without links; a package by the digest of its file, which is
    public. No digest is made of a folder's content: it would confirm guesses about private records.
    """
    noted = _NOTED.get()
    if noted is not None:
        noted.append(_package(name) if folder is None else str(folder.resolve()))


def _package(name: str) -> str:
    source = source_of(name)
    return f"{source.requirement} sha256:{source.sha256}"
