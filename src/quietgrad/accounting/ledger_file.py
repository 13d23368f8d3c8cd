"""A ledger on disk: one JSON line per record, each chained to all lines before it.

A line is written and flushed to the disk before the step it records is released, so a process that
dies at any moment leaves a file that covers everything it released. Each line carries the SHA-256
of the line before it and of itself. That finds damage and careless edits; it does not stop someone
who rewrites the whole file, for there is no secret in it.
"""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NoReturn
from uuid import uuid4

from quietgrad.accounting.events import ADD_REMOVE, Adjacency, require_adjacency
from quietgrad.accounting.ledger_records import (
    LedgerContent,
    LedgerRecord,
    entry,
    header,
    parsed,
    restoration,
)
from quietgrad.errors import LedgerError

if sys.platform != "win32":
    import fcntl

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LedgerFile:
    """An open ledger file. Made by `open`; `records` are those it held when it was opened."""

    def __init__(self, path: Path, stream: BinaryIO, content: LedgerContent) -> None:
        self.path = path
        self._stream: BinaryIO | None = stream
        self._hash = content.hash
        self._size = self._attempted = content.size
        self._process = os.getpid()
        self.id = content.id
        self.adjacency = content.adjacency
        self.records = content.records

    @classmethod
    def open(
        cls, path: str | Path, *, adjacency: Adjacency | None = None, id: str | None = None
    ) -> "LedgerFile":
        """Open for appending; make the file if there is none. See `Ledger.open`."""
        path = Path(path)
        try:
            if not path.exists():
                _create(path, adjacency or ADD_REMOVE, id or uuid4().hex)
            # Without a buffer: what could not be written must not be written later, unasked.
            stream = path.open("r+b", buffering=0)
        except OSError as error:
            raise LedgerError(
                f"{path} cannot be opened ({error}): expected a ledger, or a place for a new one"
            ) from error
        try:
            _lock(stream, path)
            content = parsed(stream.read(), path)
            if adjacency is not None and content.adjacency != require_adjacency(adjacency):
                raise LedgerError(
                    f"{path} is a ledger for adjacency={content.adjacency!r}, not {adjacency!r}:"
                    " expected the same, or another file"
                )
            stream.truncate(content.size)
            stream.seek(content.size)
        except BaseException:
            stream.close()
            raise
        return cls(path, stream, content)

    @property
    def is_in_place(self) -> bool:
        """Whether the file is open, as it was left, and still found under its name."""
        if self._stream is None:
            return False
        try:
            here, there = os.fstat(self._stream.fileno()), os.stat(self.path)
        except OSError:
            return False
        # A write that was interrupted may have left a part of its line, or all of it.
        is_as_left = self._size <= here.st_size <= max(self._size, self._attempted)
        return os.path.samestat(here, there) and is_as_left

    def append(self, record: LedgerRecord) -> None:
        """Write one line, and return when it is on the disk.

        If this fails, for want of room or by an interrupt, the line is taken back: what it says was
        not released. Where even that fails, nothing can be written any more.
        """
        self._add(*entry(record, self._hash))

    def note_restoration(self, steps: int) -> None:
        """Write down that so many steps were missing here; whoever reads the file is told so."""
        self._add(*restoration(steps, self._hash))

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            _unlock(stream)
            stream.close()

    def _add(self, line: bytes, digest: str) -> None:
        stream = self._require_usable()
        self._attempted = self._size + len(line)
        try:
            self._take_back(stream)  # of what was interrupted while it was being taken back
            _write(stream, line)
            os.fsync(stream.fileno())
        except OSError as error:
            self._give_up(stream, error)
        except BaseException:
            self._take_back(stream)
            raise
        self._hash, self._size = digest, self._attempted

    def _require_usable(self) -> BinaryIO:
        if self._stream is None:
            raise LedgerError(f"{self.path} was closed, so nothing can be released any more")
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self.path} belongs to the process that opened it: a forked one cannot record in"
                " it, so nothing was released"
            )
        if not self.is_in_place:
            raise LedgerError(
                f"{self.path} was moved, deleted or changed while in use, so nothing was"
                " released. Put it back as it was and resume from the last checkpoint"
            )
        return self._stream

    def _take_back(self, stream: BinaryIO) -> None:
        """Cut the file to its last whole line; that needs no room."""
        if os.fstat(stream.fileno()).st_size != self._size:
            stream.truncate(self._size)
        stream.seek(self._size)

    def _give_up(self, stream: BinaryIO, error: OSError) -> NoReturn:
        with suppress(OSError):
            self._take_back(stream)
            if error.errno in _NO_ROOM:
                raise LedgerError(
                    f"{self.path} cannot be written ({error}), so nothing was released. Make room,"
                    " then call engine.step() again"
                ) from error
        # After an error of the disk itself nobody knows what is on it.
        with suppress(OSError):
            self.close()
        raise LedgerError(
            f"{self.path} cannot be written ({error}), so nothing was released. Repair the disk,"
            " then resume from the last checkpoint"
        ) from error


def read_ledger(path: str | Path) -> LedgerContent:
    """What a ledger file holds; it is verified, and neither made nor locked nor changed."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path} cannot be read ({error}): expected a ledger") from error
    return parsed(data, path)


def _create(path: Path, adjacency: Adjacency, id: str) -> None:
    """Under another name first, so that there is never a ledger with half a heading."""
    line = header(id, adjacency)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        _publish(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _publish(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, never replaces a ledger made meanwhile
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        os.replace(temporary, path)


def _lock(stream: BinaryIO, path: Path) -> None:
    if sys.platform == "win32":
        return  # nothing there keeps a second process out
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LedgerError(
            f"{path} is in use by another process: wait until it has ended, or give this run a"
            " ledger of its own"
        ) from error


def _unlock(stream: BinaryIO) -> None:
    """At once, even if a process forked meanwhile still has the file open."""
    if sys.platform != "win32":
        fcntl.flock(stream.fileno(), fcntl.LOCK_UN)


def _write(stream: BinaryIO, line: bytes) -> None:
    """All of it: a disk that is nearly full takes a part and says so only then."""
    while line:
        line = line[stream.write(line) :]


def _flush_folder(folder: Path) -> None:
    """A new name in a folder survives a power cut only once the folder itself is on the disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
