"""A ledger on disk: one JSON line per record, each chained to all lines before it.

A line is written and flushed to the disk before the step it records is released, so a process that
dies at any moment leaves a file that covers everything it released. Each line carries the SHA-256
of the line before it and of itself. That finds damage and careless edits; it does not stop someone
who rewrites the whole file, for there is no secret in it.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from quietgrad._version import __version__
from quietgrad.accounting.adjacency import ADD_REMOVE, Adjacency, require_adjacency
from quietgrad.accounting.events import GaussianEvent
from quietgrad.errors import LedgerError

if sys.platform != "win32":
    import fcntl

_FORMAT = 1


class LedgerFile:
    """An open ledger file. Made by `open`; `events` are those it held when it was opened."""

    def __init__(self, path: Path, stream: BinaryIO, content: "LedgerContent") -> None:
        self.path = path
        self._stream: BinaryIO | None = stream
        self._hash = content.hash
        self._size = content.size
        self._process = os.getpid()
        self.id = content.id
        self.adjacency = content.adjacency
        self.events = content.events

    @classmethod
    def open(cls, path: str | Path, *, adjacency: Adjacency | None = None) -> "LedgerFile":
        """Open for appending; make the file if there is none. See `Ledger.open`."""
        path = Path(path)
        try:
            if not path.exists():
                _create(path, adjacency or ADD_REMOVE)
            stream = path.open("r+b")
        except OSError as error:
            raise LedgerError(
                f"{path} cannot be opened ({error}): expected a ledger, or a place for a new one"
            ) from error
        try:
            _lock(stream, path)
            content = _read(stream.read(), path)
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
        return os.path.samestat(here, there) and here.st_size == self._size

    def append(self, event: GaussianEvent) -> None:
        """Write one line, and return when it is on the disk."""
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
        line, digest = _chained({"event": event.to_dict()}, self._hash)
        try:
            self._stream.write(line)
            _flush(self._stream)
        except OSError as error:
            with suppress(OSError):  # it tries to write once more
                self.close()
            raise LedgerError(
                f"{self.path} cannot be written ({error}), so nothing was released. Make room or"
                " repair the disk, then resume from the last checkpoint"
            ) from error
        except BaseException:  # Ctrl-C in the middle: the line is written all the same
            with suppress(OSError):
                _flush(self._stream)
            self._hash, self._size = digest, self._size + len(line)
            raise
        self._hash, self._size = digest, self._size + len(line)

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            _unlock(stream)
            stream.close()


def read_ledger(path: str | Path) -> "LedgerContent":
    """What a ledger file holds; it is verified, and neither made nor locked nor changed."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path} cannot be read ({error}): expected a ledger") from error
    return _read(data, path)


@dataclass(frozen=True)
class LedgerContent:
    """What a file holds, up to its last whole line."""

    id: str
    adjacency: Adjacency
    events: tuple[GaussianEvent, ...]
    hash: str
    size: int


def _create(path: Path, adjacency: Adjacency) -> None:
    """Under another name first, so that there is never a ledger with half a heading."""
    header = {
        "quietgrad": __version__,
        "format": _FORMAT,
        "id": uuid4().hex,
        "adjacency": require_adjacency(adjacency),
    }
    line, _ = _chained(header, "")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(line)
            _flush(stream)
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


def _read(data: bytes, path: Path) -> LedgerContent:
    whole, newline, rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if not lines:
        raise LedgerError(
            f"{path} is no ledger: its first line is missing. If it was one, restore a copy;"
            " without it nobody can tell what was spent"
        )
    header, digest = _verified(lines[0], "", path, 1)
    if header.get("format") != _FORMAT:
        raise LedgerError(
            f"{path} is a ledger of format {header.get('format')!r}, written by quietgrad"
            f" {header.get('quietgrad')}: expected format {_FORMAT}"
        )
    events = []
    for number, line in enumerate(lines[1:], start=2):
        content, digest = _verified(line, digest, path, number)
        events.append(_event(content, path, number))
    if rest:
        warnings.warn(
            f"{path} ends in the middle of a line: its {len(events)} whole records were recovered,"
            " the last was dropped. A step whose record is cut was not released; if the file was"
            " cut later, the last checkpoint of the run tells what is missing",
            stacklevel=4,
        )
    size = len(whole) + len(newline)
    return LedgerContent(header["id"], header["adjacency"], tuple(events), digest, size)


def _chained(content: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """The line of this content, and the hash that the next line builds on."""
    digest = _digest(content, before)
    line = json.dumps({**content, "hash": digest}, separators=(",", ":"), sort_keys=True)
    return line.encode() + b"\n", digest


def _digest(content: Mapping[str, Any], before: str) -> str:
    canonical = json.dumps(content, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()


def _verified(line: bytes, before: str, path: Path, number: int) -> tuple[dict[str, Any], str]:
    try:
        content = json.loads(line)
        del content["hash"]
        written, digest = _chained(content, before)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise LedgerError(_altered(path, number, "it is not a record")) from error
    # Byte for byte: there is more than one way to spell the same number.
    if line + b"\n" != written:
        raise LedgerError(_altered(path, number, "its hash does not match"))
    return content, digest


def _event(content: Mapping[str, Any], path: Path, number: int) -> GaussianEvent:
    try:
        return GaussianEvent.from_dict(content["event"])
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(_altered(path, number, str(error))) from error


def _altered(path: Path, number: int, why: str) -> str:
    return (
        f"{path}, line {number}, was altered: {why}. A ledger that was edited proves nothing:"
        " restore a copy of it, or start a new run and count both"
    )


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


def _flush(stream: BinaryIO) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def _flush_folder(folder: Path) -> None:
    """A new name in a folder survives a power cut only once the folder itself is on the disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
