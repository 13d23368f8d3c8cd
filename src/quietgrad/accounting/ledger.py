"""The record of what was released so far.

Each `Ledger` object records under a session of its own, a random name. So a session's records are
one sequence, of which a copy holds the beginning or all; and two continuations of one checkpoint
are two sessions, however alike their steps are.
"""

import os
import secrets
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from quietgrad._checks import require_delta
from quietgrad._files import replace_file
from quietgrad.accounting.accountants import DEFAULT_ACCOUNTANT, profile
from quietgrad.accounting.events import (
    ADD_REMOVE,
    Adjacency,
    GaussianEvent,
    Passes,
    concerning,
    require_adjacency,
    require_dataset,
    require_event,
)
from quietgrad.accounting.ledger_file import LedgerFile, LedgerRecord, read_ledger, write_ledger
from quietgrad.errors import LedgerError

_OPEN: WeakValueDictionary[Path, "Ledger"] = WeakValueDictionary()
"""Ledgers with a file, so that two engines of one process record in one ledger."""


class Ledger:
    """Every release on one data set, in order, and the epsilon they spend together.

    Record a step before its result is used, so that the ledger is never behind the release. One
    ledger may serve several phases of training, and several engines, on the same data. Of several
    data sets that have names and are declared disjoint, each spends its own epsilon.

    Args:
        events: what was done before.
        adjacency: which data sets are neighbours.
        id: names this history; a new one if None.
        disjoint: as for :meth:`declare_disjoint`.
    """

    def __init__(
        self,
        events: Iterable[GaussianEvent] = (),
        *,
        adjacency: Adjacency = ADD_REMOVE,
        id: str | None = None,
        disjoint: Iterable[str] = (),
    ) -> None:
        self._adjacency = require_adjacency(adjacency)
        self._id = id or uuid4().hex
        self._file: LedgerFile | None = None
        # Can be taken again by its holder: an interrupt may keep it from being given back.
        self._lock = threading.RLock()
        self._records: list[LedgerRecord] = []
        self._session, self._process = secrets.token_hex(8), os.getpid()
        self._epsilons: dict[tuple[float, str, str | None], float] = {}
        self._covered = 0
        self._disjoint: tuple[str, ...] = ()
        self._head: str | None = None
        for event in events:
            self._append(LedgerRecord(self._id, require_event(event)))
        if names := tuple(disjoint):
            self.declare_disjoint(*names)

    @classmethod
    def open(cls, path: str | Path, *, adjacency: Adjacency | None = None) -> "Ledger":
        """A ledger kept in a file: every record is on disk before `record` returns.

        The file is made if there is none. If there is, its events are read, and new ones are
        appended. It stays locked against other processes until `close`; within this process,
        opening it again gives the same ledger.

        Args:
            path: a file of JSON lines, each of which carries a hash of all before it.
            adjacency: of a new ledger (`add-remove-one` if None); an old one must agree.

        Raises:
            LedgerError: the file was edited, is no ledger, is in use, or has another adjacency.
        """
        place = Path(path).resolve()
        ledger = _OPEN.get(place)
        if ledger is None or not ledger._is_open:
            file = LedgerFile.open(place, adjacency=adjacency)
            _OPEN[place] = ledger = cls._of(file.records, adjacency=file.adjacency, id=file.id)
            ledger._file, ledger._disjoint = file, file.disjoint
        elif adjacency not in (None, ledger.adjacency):
            raise LedgerError(
                f"{path} is open as a ledger for adjacency={ledger.adjacency!r}, not {adjacency!r}:"
                " expected the same, or another file"
            )
        return ledger

    @classmethod
    def read(cls, path: str | Path) -> "Ledger":
        """What a ledger file holds, to look at: also while a run is writing it.

        Nothing is made, locked or changed, and records in what is returned stay in memory.

        Raises:
            LedgerError: the file cannot be read, was edited, or is no ledger.
        """
        content = read_ledger(path)
        ledger = cls._of(content.records, adjacency=content.adjacency, id=content.id)
        ledger._disjoint, ledger._head = content.disjoint, content.hash
        return ledger

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Ledger":
        """What `to_dict` wrote; LedgerError if it did not write this."""
        try:
            name = data["id"]
            if not isinstance(name, str) or not name:
                raise ValueError(f"id={name!r} is not valid: expected a string")
            records = [LedgerRecord.from_dict(each, unnamed=name) for each in data["events"]]
            ledger = cls._of(records, adjacency=data["adjacency"], id=name)
            ledger._disjoint = _names(data.get("disjoint", ()))
            return ledger
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"what was saved is no ledger: {error!r}") from error

    def mirror(self, session: str) -> None:
        """Record under the name of a ledger in another process, of which this one is a copy."""
        self._session = session

    @property
    def session(self) -> str:
        """The name under which this object records."""
        return self._session

    def __repr__(self) -> str:
        return f"Ledger({list(self.events)!r}, adjacency={self._adjacency!r})"

    @property
    def id(self) -> str:
        """Names this history, across copies and files of it."""
        return self._id

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours."""
        return self._adjacency

    @property
    def disjoint(self) -> tuple[str, ...]:
        """Names of data sets of which no two share a record, as they were declared."""
        return self._disjoint

    def declare_disjoint(self, *names: str) -> None:
        """Say that no two of these data sets share a record, nor one of those said before.

        A record of one of them then took no part in what was released from the others, and each
        data set spends its own epsilon (parallel composition). Releases without a name, and from
        data sets that are not declared here, count for all. Nothing can check what is declared:
        it is your word, and reports say so. Which record belongs to which data set must be fixed
        beforehand. The file keeps the declaration.

        Args:
            names: of data sets, as `PrivacyEngine(data_name=)` and events have them.
        """
        added = [name for name in _names(names) if name not in self._disjoint]
        declared = (*self._disjoint, *dict.fromkeys(added))
        if len(declared) < 2:
            raise ValueError(f"names={names!r}: expected at least two data sets to be disjoint")
        if not added:
            return
        with self._lock:
            if self._file is not None:
                self._file.note_disjoint(declared)
            self._disjoint, self._head = declared, None
            self._epsilons.clear()

    @property
    def datasets(self) -> tuple[str | None, ...]:
        """The data sets that something was released from, in order; None for one without a name."""
        return tuple(dict.fromkeys(record.event.dataset for record in self._records))

    def concerning(self, dataset: str | None) -> tuple[GaussianEvent, ...]:
        """What was released from this data set, or may have been."""
        return concerning(self.events, dataset, self._disjoint)

    @property
    def parts(self) -> dict[str | None, tuple[GaussianEvent, ...]]:
        """What concerns each of the disjoint data sets; everything, by None, where there are none.

        What the ledger spends is the most that any of them does.
        """
        named = [name for name in self.datasets if name in self._disjoint]
        return {name: self.concerning(name) for name in named} or {None: self.events}

    @property
    def head(self) -> str | None:
        """SHA-256 of the file's last line, which all lines before it go into.

        None in memory, and once something was added to what was read.
        """
        return self._head if self._file is None else self._file.hash

    @property
    def path(self) -> Path | None:
        """The file that records are kept in; None in memory."""
        return None if self._file is None else self._file.path

    @property
    def has_file(self) -> bool:
        """Whether records are kept on disk."""
        return self._file is not None

    @property
    def is_slow(self) -> bool:
        """Whether the disk took a while for the last record: something else may be done beside."""
        return self._file is not None and self._file.is_slow

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """What was recorded; equal steps in a row are one event."""
        events: list[GaussianEvent] = []
        for record in self._records:
            if events and events[-1].same_mechanism(record.event):
                events[-1] = events[-1].plus(record.event)
            else:
                events.append(record.event)
        return tuple(events)

    @property
    def steps(self) -> int:
        """The number of releases."""
        return _steps(self._records)

    @property
    def times_covered(self) -> int:
        """How often `cover` was called: a pass that was under way may have been taken over."""
        return self._covered

    def record(self, event: GaussianEvent) -> None:
        """Add what is about to be released.

        Raises:
            LedgerError: it could not be written; then it must not be released.
        """
        self._require_recordable(event)
        with self._lock:
            self._write(self._own(event))

    @contextmanager
    def recording(self, event: GaussianEvent) -> Iterator[None]:
        """Add what is about to be released; it goes to the disk beside what is done in here.

        Release it after that, not in here. If what is done in here raises, nothing is recorded.

        Raises:
            LedgerError: it could not be written; then it must not be released.
        """
        self._require_recordable(event)
        with self._lock:
            record = self._own(event)
            with nullcontext() if self._file is None else self._file.appending(record):
                yield
            self._append(record)

    def epsilon(
        self, delta: float, *, accountant: str = DEFAULT_ACCOUNTANT, dataset: str | None = None
    ) -> float:
        """Upper bound on what everything together spends at `delta`; kept until the next step.

        Args:
            delta: probability with which the bound may fail.
            accountant: by which it is computed.
            dataset: what a record of this data set spends; None for the most that any does.
        """
        require_delta("delta", delta)
        key = (delta, accountant, dataset)
        if key not in self._epsilons:
            parts = self.parts.values() if dataset is None else [self.concerning(dataset)]
            profiles = [
                profile(events, accountant=accountant, adjacency=self._adjacency)
                for events in parts
            ]
            self._epsilons[key] = max(each.epsilon(delta) for each in profiles)
        return self._epsilons[key]

    def cover(self, saved: "Ledger") -> int:
        """Make sure that everything in `saved` is in here too; nothing is ever taken out.

        A copy of this history that is behind adds nothing; one that is ahead is caught up with;
        one that was continued apart from this one, and another history, are added to it. Two that
        were continued apart may have gone on with the same pass over the data, which each counts as
        begun by the other: then it is counted once more. A file keeps a note of what it lacked, of
        which everybody who reads it is warned.

        Returns:
            The number of steps in here that `saved` lacks.

        Raises:
            LedgerError: both hold what the same process recorded, and disagree about it.
        """
        if saved.adjacency != self.adjacency:
            raise LedgerError(
                f"the saved ledger is for adjacency={saved.adjacency!r}, this one for"
                f" {self.adjacency!r}: their epsilons cannot be added up"
            )
        if not self._records and self._file is None:
            self._id = saved.id  # from here on, this is that history
        if saved.disjoint and not self._records:  # otherwise its epsilon is not made smaller
            self.declare_disjoint(*saved.disjoint)
        lacking = _missing(self._records, saved._records)
        ahead = _steps(_missing(saved._records, self._records))
        if lacking and (self._file is not None or saved.id != self.id or ahead):
            warnings.warn(
                f"{_steps(lacking)} steps that were saved elsewhere are not"
                f" in this ledger ({self._place}) and are added to it. If the file was lost or"
                " cut, steps taken after the saved ones are unknown",
                stacklevel=4,
            )
        with self._lock:
            self._covered += 1
            again = _passes_again(self._records, saved._records, lacking) if ahead else []
            if lacking and self._file is not None:
                self._file.note_restoration(_steps(lacking))
            # First what is counted again: an interrupt in between overstates what was spent.
            for record in (*map(self._own, again), *lacking):
                self._write(record)
        return ahead

    def keep_in(self, path: str | Path) -> None:
        """Go on in a new file: from here on every record is on disk before `record` returns.

        Raises:
            ValueError: something was recorded already, or this ledger has a file.
            LedgerError: there is such a file, or it cannot be made.
        """
        if self._records or self._file is not None:
            raise ValueError("only an empty ledger can move into a file: expected a new one")
        place = Path(path).resolve()
        file = LedgerFile.open(place, adjacency=self._adjacency, id=self._id)
        if file.id != self._id:
            file.close()
            raise LedgerError(
                f"{path} was made by another process meanwhile: wait until it has ended, or give"
                " this run a ledger of its own"
            )
        if self._disjoint:
            file.note_disjoint(self._disjoint)
        self._file = file
        _OPEN[place] = self

    def copy_to(self, path: str | Path) -> None:
        """Write a copy as it is now: of the file, byte for byte, or of what is in memory.

        Nothing is recorded in the copy; :meth:`read` reads it.
        """
        if self._file is not None:
            content = self._file.path.read_bytes()[: self._file.size]
            replace_file(Path(path), lambda stream: stream.write(content))
            return
        write_ledger(
            Path(path),
            self._records,
            adjacency=self._adjacency,
            id=self._id,
            disjoint=self._disjoint,
        )

    def summary(self) -> dict[str, Any]:
        """What was released, without who recorded it, as plain data for reports."""
        return {
            "id": self._id,
            "adjacency": self._adjacency,
            "disjoint": list(self._disjoint),
            "head": self.head,
            "events": [event.to_dict() for event in self.events],
        }

    @classmethod
    def from_summary(cls, data: Mapping[str, Any]) -> "Ledger":
        """What `summary` gave; LedgerError if it did not give this."""
        ledger = cls.from_dict(data)
        head = data.get("head")
        if not isinstance(head, str | None):
            raise LedgerError(f"what was saved is no ledger: its head is {head!r}")
        ledger._head = head
        return ledger

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for checkpoints."""
        return {
            "id": self._id,
            "adjacency": self._adjacency,
            "events": [record.to_dict() for record in self._records],
            "has_file": self.has_file,
            **({"disjoint": list(self._disjoint)} if self._disjoint else {}),
        }

    def close(self) -> None:
        """Let go of the file, if there is one. Nothing can be recorded in it after that."""
        if self._file is not None:
            self._file.close()

    @property
    def _place(self) -> str:
        return "in memory" if self._file is None else str(self._file.path)

    @property
    def _is_open(self) -> bool:
        return self._file is not None and self._file.is_in_place

    @classmethod
    def _of(cls, records: Iterable[LedgerRecord], *, adjacency: Adjacency, id: str) -> "Ledger":
        """A ledger that goes on after these."""
        ledger = cls(adjacency=adjacency, id=id)
        for record in records:
            ledger._append(record)
        return ledger

    def _require_recordable(self, event: GaussianEvent) -> None:
        require_event(event)
        if self._file is not None:
            # Before the lock, which a forked process may have inherited from a thread it lacks.
            self._file.require_own_process()

    def _own(self, event: GaussianEvent) -> LedgerRecord:
        if os.getpid() != self._process:  # forked: parent and child go on apart
            self._session, self._process = secrets.token_hex(8), os.getpid()
        return LedgerRecord(self._session, event)

    def _write(self, record: LedgerRecord) -> None:
        if self._file is not None:
            self._file.append(record)
        self._append(record)

    def _append(self, record: LedgerRecord) -> None:
        _extend(self._records, record)
        self._head = None  # of the file that was read, which lacks this one
        self._epsilons.clear()


def _names(names: Iterable[object]) -> tuple[str, ...]:
    return tuple(require_dataset("disjoint", name) for name in names)


def _steps(records: Iterable[LedgerRecord]) -> int:
    return sum(record.event.steps for record in records)


def _extend(records: list[LedgerRecord], record: LedgerRecord) -> None:
    """Append; equal steps in a row of one session become one record."""
    last = records[-1] if records else None
    same = last is not None and last.session == record.session
    if last is not None and same and last.event.same_mechanism(record.event):
        records[-1] = LedgerRecord(last.session, last.event.plus(record.event))
    else:
        records.append(record)


def _missing(own: Iterable[LedgerRecord], others: Iterable[LedgerRecord]) -> list[LedgerRecord]:
    """What others recorded and is not among one's own, session by session.

    Raises:
        LedgerError: both hold a session, and neither holds the beginning of the other's.
    """
    here, there = _by_session(own), _by_session(others)
    return [
        LedgerRecord(session, event)
        for session, events in there.items()
        for event in _beyond(events, here.get(session, []))
    ]


def _passes_again(
    own: Iterable[LedgerRecord], others: Iterable[LedgerRecord], lacking: Iterable[LedgerRecord]
) -> list[GaussianEvent]:
    """What to count beside others' records, where both continued one history apart.

    A pass that was under way where they parted was begun in what they share, so steps of it that
    were taken apart say of no beginning, though samples took part in both. One pass more for each
    record covers that; where it is too much, epsilon is overstated.
    """
    if not {record.session for record in own} & {record.session for record in others}:
        return []
    apart = [record.event for record in lacking if isinstance(record.event.sampling, Passes)]
    return [replace(event, steps=0, passes=1) for event in apart]


def _by_session(records: Iterable[LedgerRecord]) -> dict[str, list[GaussianEvent]]:
    sequences: dict[str, list[LedgerRecord]] = {}
    for record in records:
        _extend(sequences.setdefault(record.session, []), record)
    return {session: [each.event for each in found] for session, found in sequences.items()}


def _beyond(theirs: list[GaussianEvent], ours: list[GaussianEvent]) -> list[GaussianEvent]:
    """The end of their copy of a session that ours lacks; nothing if ours is as long."""
    shorter, longer = sorted((ours, theirs), key=_extent)
    rest = _end(longer, shorter)
    return rest if longer is theirs else []


def _extent(events: list[GaussianEvent]) -> tuple[int, int]:
    return sum(event.steps for event in events), sum(event.passes or 0 for event in events)


def _end(longer: list[GaussianEvent], shorter: list[GaussianEvent]) -> list[GaussianEvent]:
    if not shorter:
        return longer
    *settled, last = shorter
    rest = longer[len(settled) :]
    if longer[: len(settled)] != settled or not rest or not rest[0].has_part(last):
        raise LedgerError(
            "two ledgers of the same run disagree about what was released: one of them was edited."
            " Make a new ledger, and record in it what both of them hold"
        )
    remainder = rest[0].minus(last)
    return [*([remainder] if remainder.steps or remainder.passes else []), *rest[1:]]
