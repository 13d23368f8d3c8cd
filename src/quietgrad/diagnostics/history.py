"""Measurements one after the other, in memory and in a file. NOT PRIVATE."""

from __future__ import annotations

from pathlib import Path

from quietgrad.diagnostics.log import append, begin, log_file, require_unused
from quietgrad.diagnostics.measurement import NOT_PRIVATE, Record


class History:
    """What recorders have in common: they keep what they measured.

    Args:
        path: an existing folder, or a file whose name says that it is not private; None writes
            nothing.
        append: whether the file may hold records already, of the run that goes on.

    Raises:
        FileExistsError: it does, and it may not.
    """

    def __init__(self, path: str | Path | None, *, append: bool = False) -> None:
        self._path = None if path is None else log_file(path)
        self._is_begun = append
        if self._path is not None and not append:
            require_unused(self._path)
        self._history: list[Record] = []

    @property
    def history(self) -> tuple[Record, ...]:
        """All measurements so far."""
        return tuple(self._history)

    @property
    def path(self) -> Path | None:
        """The file that is written to."""
        return self._path

    def _append(self, record: Record) -> None:
        self._history.append(record)
        if self._path is not None:
            write = append if self._is_begun else begin
            write(self._path, record)
            self._is_begun = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {len(self._history)} measurements, {NOT_PRIVATE}>"
