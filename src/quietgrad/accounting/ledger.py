"""The record of what was released so far."""

import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from quietgrad._checks import require_delta
from quietgrad.accounting.adjacency import ADD_REMOVE, Adjacency, require_adjacency
from quietgrad.accounting.budget import DEFAULT_ACCOUNTANT, profile
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.ledger_file import LedgerFile, read_ledger
from quietgrad.errors import LedgerError


class Ledger:
    """Every release on one data set, in order, and the epsilon they spend together.

    Record a step before its result is used, so that the ledger is never behind the release. One
    ledger may serve several phases of training, and several engines, on the same data.

    Args:
        events: what was done before.
        adjacency: which data sets must look alike.
        id: names this history; a new one if None.
    """

    def __init__(
        self,
        events: Iterable[GaussianEvent] = (),
        *,
        adjacency: Adjacency = ADD_REMOVE,
        id: str | None = None,
    ) -> None:
        self._adjacency = require_adjacency(adjacency)
        self._id = id or uuid4().hex
        self._file: LedgerFile | None = None
        self._lock = threading.Lock()
        self._events: list[GaussianEvent] = []
        self._epsilons: dict[tuple[float, str], float] = {}
        for event in events:
            self._append(event)

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
            _OPEN[place] = ledger = cls(file.events, adjacency=file.adjacency, id=file.id)
            ledger._file = file
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
        return cls(content.events, adjacency=content.adjacency, id=content.id)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Ledger":
        """What `to_dict` wrote; LedgerError if it did not write this."""
        try:
            events = [GaussianEvent.from_dict(each) for each in data["events"]]
            return cls(events, adjacency=data["adjacency"], id=data["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(f"what was saved is no ledger: {error!r}") from error

    def __repr__(self) -> str:
        return f"Ledger({self._events!r}, adjacency={self._adjacency!r})"

    @property
    def id(self) -> str:
        """Names this history, across copies and files of it."""
        return self._id

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets must look alike."""
        return self._adjacency

    @property
    def events(self) -> tuple[GaussianEvent, ...]:
        """What was recorded; equal steps in a row are one event."""
        return tuple(self._events)

    @property
    def steps(self) -> int:
        """The number of releases."""
        return sum(event.steps for event in self._events)

    def record(self, event: GaussianEvent) -> None:
        """Add what is about to be released.

        Raises:
            LedgerError: it could not be written; then it must not be released.
        """
        with self._lock:
            if self._file is not None:
                self._file.append(event)
            self._append(event)

    def epsilon(self, delta: float, *, accountant: str = DEFAULT_ACCOUNTANT) -> float:
        """Upper bound on what everything together spends at `delta`; kept until the next step."""
        require_delta("delta", delta)
        key = (delta, accountant)
        if key not in self._epsilons:
            whole = profile(self._events, accountant=accountant, adjacency=self._adjacency)
            self._epsilons[key] = whole.epsilon(delta)
        return self._epsilons[key]

    def cover(self, saved: "Ledger") -> int:
        """Make sure that everything in `saved` is in here too; nothing is ever taken out.

        A copy of this history that is behind adds nothing; one that is ahead is caught up with;
        another history is added to this one.

        Returns:
            The number of steps in here that `saved` lacks.

        Raises:
            LedgerError: both claim to be the same history, and disagree.
        """
        if saved.adjacency != self.adjacency:
            raise LedgerError(
                f"the saved ledger is for adjacency={saved.adjacency!r}, this one for"
                f" {self.adjacency!r}: their epsilons cannot be added up"
            )
        if not self._events and self._file is None:
            self._id = saved.id  # from here on, this is that history
        ahead = max(0, self.steps - saved.steps) if saved.id == self.id else self.steps
        missing = self._missing(saved)
        if missing and (self._file is not None or saved.id != self.id):
            warnings.warn(
                f"{sum(event.steps for event in missing)} steps that were saved elsewhere are not"
                f" in this ledger ({self._place}) and are added to it. If the file was lost or"
                " cut, steps taken after the saved ones are unknown",
                stacklevel=3,
            )
        for event in missing:
            self.record(event)
        return ahead

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for checkpoints."""
        events = [event.to_dict() for event in self._events]
        return {"id": self._id, "adjacency": self._adjacency, "events": events}

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

    def _missing(self, saved: "Ledger") -> list[GaussianEvent]:
        if saved.id != self.id:
            return list(saved.events)
        if saved.steps <= self.steps:
            _beyond(self._events, saved._events)
            return []
        return _beyond(saved._events, self._events)

    def _append(self, event: GaussianEvent) -> None:
        last = self._events[-1] if self._events else None
        if last is not None and last.same_mechanism(event):
            self._events[-1] = last.plus(event)
        else:
            self._events.append(event)
        self._epsilons.clear()


_OPEN: WeakValueDictionary[Path, Ledger] = WeakValueDictionary()
"""Ledgers with a file, so that two engines of one process record in one ledger."""


def _beyond(longer: list[GaussianEvent], shorter: list[GaussianEvent]) -> list[GaussianEvent]:
    """What the longer of two copies of one history has and the shorter has not."""
    if not shorter:
        return longer
    *settled, last = shorter
    rest = longer[len(settled) :]
    if longer[: len(settled)] != settled or not rest or not rest[0].has_part(last):
        raise LedgerError(
            "two ledgers of the same run disagree about what was released: the run was continued"
            " twice from one checkpoint, or one of them was edited. Make a new ledger, and record"
            " in it what both of them hold"
        )
    return [rest[0].minus(last), *rest[1:]]
