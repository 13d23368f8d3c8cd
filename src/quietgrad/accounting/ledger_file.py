"""A ledger on disk: one JSON line per record, each chained to all lines before it.

A line is written and flushed to the disk before the step it records is released, so a process that
dies at any moment leaves a file that covers everything it released. Each line carries the SHA-256
of the line before it and of itself. That finds damage and careless edits; it does not stop someone
who rewrites the whole file, for there is no secret in it.
"""

import errno
import hashlib
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn
from uuid import uuid4

from quietgrad._files import replace_file
from quietgrad._version import __version__
from quietgrad.accounting.events import (
    ADD_REMOVE,
    ADJACENCIES,
    Adjacency,
    GaussianEvent,
    Unit,
    require_adjacency,
    require_dataset,
)
from quietgrad.errors import LedgerError

if sys.platform != "win32":
    import fcntl

# A version that does not know units would take what is said of people for records.
_FORMAT, _FORMAT_OF_UNITS = 1, 2
_RESTORED, _DISJOINT = "restored", "disjoint"
_HEADING_NAMES = (b'"hash"', b'"quietgrad"')  # a damaged first line still has one of them
_SLOW = 1e-3  # seconds; less is not worth a thread
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class LedgerRecord:
    """Some releases in a row, and the session that wrote them down."""

    session: str
    event: GaussianEvent

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for checkpoints."""
        return {**self.event.to_dict(), "session": self.session}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, unnamed: str) -> "LedgerRecord":
        """What `to_dict` wrote, of session `unnamed` if it names none; ValueError otherwise."""
        fields = dict(data)
        session = fields.pop("session", unnamed)
        if not isinstance(session, str):
            raise ValueError(f"session={session!r} is not valid: expected a string")
        return cls(session, GaussianEvent.from_dict(fields))


@dataclass(frozen=True)
class LedgerContent:
    """What a file holds, up to its last whole line."""

    id: str
    adjacency: Adjacency
    unit: Unit | None
    records: tuple[LedgerRecord, ...]
    hash: str
    size: int
    disjoint: tuple[str, ...] = ()


class LedgerFile:
    """An open ledger file. Made by `open`; `records` are those it held when it was opened."""

    def __init__(self, path: Path, stream: BinaryIO, content: LedgerContent) -> None:
        self.path = path
        self._stream: BinaryIO | None = stream
        self._hash = content.hash
        self._size = self._attempted = content.size
        self._flush: _Flush | None = None  # that is under way
        self._flush_seconds = 0.0
        self._process = os.getpid()
        self.id = content.id
        self.adjacency, self.unit = content.adjacency, content.unit
        self.records = content.records
        self.disjoint = content.disjoint

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        adjacency: Adjacency | None = None,
        unit: Unit | None = None,
        id: str | None = None,
    ) -> "LedgerFile":
        """Open for appending; make the file if there is none. See `Ledger.open`."""
        path = Path(path)
        try:
            if not path.exists():
                _create(path, adjacency or ADD_REMOVE, unit, id or uuid4().hex)
            # Without a buffer: what could not be written must not be written later, unasked.
            stream = path.open("r+b", buffering=0)
        except OSError as error:
            raise LedgerError(
                f"{path} cannot be opened ({error}): expected a ledger, or a place for a new one"
            ) from error
        try:
            _lock(stream, path)
            content = _parse(stream.read(), path)
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

    @property
    def is_slow(self) -> bool:
        """Whether it took a while until the last line was on the disk."""
        return self._flush_seconds > _SLOW

    def append(self, record: LedgerRecord) -> None:
        """Write one line, and return when it is on the disk.

        If this fails, for want of room or by an interrupt, the line is taken back: what it says was
        not released. Where even that fails, nothing can be written any more.
        """
        with self._adding(_content(record)):
            pass

    def appending(self, record: LedgerRecord) -> AbstractContextManager[None]:
        """Write one line, which goes to the disk beside what is done in here, and is there after.

        What is done in here must not be released in here. If it raises, the line is taken back.
        """
        return self._adding(_content(record), beside=True)

    def note_restoration(self, steps: int) -> None:
        """Record that so many steps were missing here; whoever reads the file is warned."""
        with self._adding({_RESTORED: steps}):
            pass

    def note_disjoint(self, names: Sequence[str]) -> None:
        """Record which data sets are said to share no record."""
        with self._adding({_DISJOINT: list(names)}):
            pass

    @property
    def size(self) -> int:
        """Bytes up to the end of the last line."""
        return self._size

    @property
    def hash(self) -> str:
        """Of the last line, and so of all before it."""
        return self._hash

    def close(self) -> None:
        """Let go of the file and its lock."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._end_flush()  # before another file can get its number
            if sys.platform != "win32":  # at once, even if a forked process still has the file open
                fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
            stream.close()

    def require_own_process(self) -> None:
        """Refuse a process that was forked from the one that opened the file."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self.path} belongs to the process that opened it: a forked one cannot record in"
                " it, so nothing was released"
            )

    @contextmanager
    def _adding(self, content: Mapping[str, Any], *, beside: bool = False) -> Iterator[None]:
        line, digest = chain_line(content, self._hash)
        stream = self._require_usable()
        self._end_flush()  # that an interrupt left alone
        self._attempted = self._size + len(line)
        with self._taken_back_on_error(stream):
            self._take_back(stream)  # of what was interrupted while it was being taken back
            rest = line
            while rest:  # a disk that is nearly full takes a part, and fails only at the next
                rest = rest[stream.write(rest) :]
            self._flush = flush = _Flush(stream.fileno())
            flush.start(beside=beside)
        try:
            yield
        except BaseException:
            # Not in a forked process, and not if this was left alone and others came after it.
            if os.getpid() == self._process and self._flush is flush:
                with suppress(LedgerError), self._taken_back_on_error(stream):
                    flush.wait()
                    self._take_back(stream)
            raise
        self.require_own_process()
        with self._taken_back_on_error(stream):
            flush.wait()
        self._hash, self._size, self._flush = digest, self._attempted, None
        self._flush_seconds = flush.seconds

    def _end_flush(self) -> None:
        if self._flush is not None:
            self._flush.end()
            self._flush = None

    @contextmanager
    def _taken_back_on_error(self, stream: BinaryIO) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._give_up(stream, error)
        except BaseException:
            self._take_back(stream)
            raise

    def _require_usable(self) -> BinaryIO:
        if self._stream is None:
            raise LedgerError(f"{self.path} was closed, so nothing can be released any more")
        self.require_own_process()
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


class _Flush:
    """What was written to a file goes to the disk, in a thread beside other work or at once."""

    def __init__(self, handle: int) -> None:
        self.seconds = 0.0
        self._handle, self._is_done = handle, threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, *, beside: bool) -> None:
        """Begin; if it is not beside other work, it is done after this."""
        if beside:
            self._thread = threading.Thread(target=self._run, name="quietgrad-ledger")
            try:
                self._thread.start()
                return
            except RuntimeError:  # no more threads, or the interpreter is about to end
                self._thread = None
        self._do()

    def wait(self) -> None:
        """Until it is done; what it raised is raised."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Until it is done, if it was begun, and by this process."""
        # An interrupt of join() would make Python take the thread for ended.
        if self._thread is not None and self._thread.is_alive():
            self._is_done.wait()

    def _do(self) -> None:
        start = time.perf_counter()
        os.fsync(self._handle)
        self.seconds = time.perf_counter() - start

    def _run(self) -> None:
        try:
            self._do()
        except BaseException as error:
            self._error = error
        finally:
            self._is_done.set()


def _content(record: LedgerRecord) -> dict[str, Any]:
    return {"event": record.event.to_dict(), "session": record.session}


def read_ledger(path: str | Path) -> LedgerContent:
    """What a ledger file holds; it is verified, and neither made nor locked nor changed."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{path} cannot be read ({error}): expected a ledger") from error
    return _parse(data, path)


def write_ledger(
    path: Path,
    records: Iterable[LedgerRecord],
    *,
    adjacency: Adjacency,
    unit: Unit | None,
    id: str,
    disjoint: Sequence[str] = (),
) -> None:
    """Write a ledger that was kept in memory, as a whole."""
    lines = [_heading(adjacency, unit, id)]
    lines += [{_DISJOINT: list(disjoint)}] if disjoint else []
    lines += [_content(record) for record in records]
    digest, whole = "", b""
    for content in lines:
        line, digest = chain_line(content, digest)
        whole += line
    replace_file(path, lambda stream: stream.write(whole))


def _heading(adjacency: Adjacency, unit: Unit | None, id: str) -> dict[str, Any]:
    return {
        "quietgrad": __version__,
        "format": _FORMAT if unit is None else _FORMAT_OF_UNITS,
        "id": id,
        "adjacency": require_adjacency(adjacency),
        **({} if unit is None else {"unit": unit.to_dict()}),
    }


def _create(path: Path, adjacency: Adjacency, unit: Unit | None, id: str) -> None:
    """Under another name first, so that there is never a ledger with half a heading."""
    line, _ = chain_line(_heading(adjacency, unit, id), "")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as stream:
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, never replaces a ledger made meanwhile
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(path.parent)


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


def _flush_folder(folder: Path) -> None:
    """A new name in a folder survives a power cut only once the folder itself is on the disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _parse(data: bytes, path: Path) -> LedgerContent:
    """What a file with these bytes holds; LedgerError if it was altered, or is no ledger."""
    whole, newline, rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if not lines:
        raise LedgerError(
            f"{path} is not a quietgrad ledger: its first line is missing. If it was one, restore a"
            " copy; without it nobody can tell what was spent"
        )
    if not any(name in lines[0] for name in _HEADING_NAMES):
        raise LedgerError(
            f"{path} is not a quietgrad ledger (line 1 is not a ledger record). Name the"
            " ledger.jsonl of a run; if this file was a ledger, restore a copy of it"
        )
    heading, digest = _verify_line(lines[0], "", path, 1)
    unit = _read_heading(heading, path)
    records: list[LedgerRecord] = []
    disjoint: tuple[str, ...] = ()
    for number, line in enumerate(lines[1:], start=2):
        content, digest = _verify_line(line, digest, path, number)
        if _RESTORED in content:
            _warn_of_restoration(content, path, number)
        elif _DISJOINT in content:
            disjoint = _declaration(content, path, number)
        else:
            records.append(_record(content, heading["id"], path, number))
    if rest:
        warnings.warn(
            f"{path} ends in the middle of a line: its {len(records)} whole records were recovered,"
            " the last was dropped. A step whose record is cut was not released; if the file was"
            " cut later, the last checkpoint of the run tells what is missing",
            stacklevel=4,
        )
    size = len(whole) + len(newline)
    found = tuple(records)
    return LedgerContent(heading["id"], heading["adjacency"], unit, found, digest, size, disjoint)


def _read_heading(heading: Mapping[str, Any], path: Path) -> Unit | None:
    """The unit that a first line names; LedgerError if it is no heading."""
    if heading.get("format") not in (_FORMAT, _FORMAT_OF_UNITS):
        raise LedgerError(
            f"{path} is a ledger of format {heading.get('format')!r}, written by quietgrad"
            f" {heading.get('quietgrad')}: expected format {_FORMAT} or {_FORMAT_OF_UNITS}"
        )
    if not isinstance(heading.get("id"), str) or heading.get("adjacency") not in ADJACENCIES:
        raise LedgerError(_altered(path, 1, "it names no history and adjacency"))
    if heading["format"] == _FORMAT:
        return None
    try:
        return Unit.from_dict(heading["unit"])
    except (KeyError, ValueError) as error:
        raise LedgerError(_altered(path, 1, "it does not say what a unit is")) from error


_ENCODE = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


def chain_line(content: Mapping[str, Any], before: str) -> tuple[bytes, str]:
    """The line of this content, and the hash that the next line builds on."""
    canonical = _ENCODE(content)
    digest = hashlib.sha256(f"{before}\n{canonical}".encode()).hexdigest()
    line = _ENCODE({**content, "hash": digest})
    return line.encode() + b"\n", digest


def _verify_line(line: bytes, before: str, path: Path, number: int) -> tuple[dict[str, Any], str]:
    try:
        content = json.loads(line)
        del content["hash"]
        written, digest = chain_line(content, before)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise LedgerError(_altered(path, number, "it is not a record")) from error
    # Byte for byte: there is more than one way to spell the same number.
    if line + b"\n" != written:
        raise LedgerError(_altered(path, number, "its hash does not match"))
    return content, digest


def _record(content: Mapping[str, Any], id: str, path: Path, number: int) -> LedgerRecord:
    try:
        session = {"session": content["session"]} if "session" in content else {}
        return LedgerRecord.from_dict({**content["event"], **session}, unnamed=id)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(_altered(path, number, str(error))) from error


def _declaration(content: Mapping[str, Any], path: Path, number: int) -> tuple[str, ...]:
    try:
        if set(content) != {_DISJOINT} or not isinstance(content[_DISJOINT], list):
            raise ValueError("it is not a record")
        return tuple(require_dataset(_DISJOINT, name) for name in content[_DISJOINT])
    except ValueError as error:
        raise LedgerError(_altered(path, number, str(error))) from error


def _warn_of_restoration(content: Mapping[str, Any], path: Path, number: int) -> None:
    steps = content[_RESTORED]
    if set(content) != {_RESTORED} or type(steps) is not int or steps < 0:
        raise LedgerError(_altered(path, number, "it is not a record"))
    warnings.warn(
        f"{path} was incomplete: what was missing in it (steps: {steps}) was added from a saved"
        f" state (line {number}). Steps that were recorded after that state was saved, and lost"
        " with the file, are in no figure",
        stacklevel=5,
    )


def _altered(path: Path, number: int, why: str) -> str:
    return (
        f"{path}, line {number}, was altered: {why}. A ledger that was edited proves nothing:"
        " restore a copy of it, or start a new run and count both"
    )
