"""Who recorded what: histories that were continued twice can be told apart and added up.

Each `Ledger` object records under a session of its own, a random name. So a session's records are
one sequence, of which a copy holds the beginning or all; and two continuations of one checkpoint
are two sessions, however alike their steps are.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.participation import Passes
from quietgrad.errors import LedgerError


@dataclass(frozen=True)
class Record:
    """Some releases in a row, and the session that wrote them down."""

    session: str
    event: GaussianEvent

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for checkpoints."""
        return {**self.event.to_dict(), "session": self.session}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, unnamed: str) -> "Record":
        """What `to_dict` wrote; ValueError if it did not write this.

        Args:
            data: from a checkpoint.
            unnamed: the session of records that name none.
        """
        fields = dict(data)
        session = fields.pop("session", unnamed)
        if not isinstance(session, str):
            raise ValueError(f"session={session!r} is not valid: expected a string")
        return cls(session, GaussianEvent.from_dict(fields))


def new_session() -> str:
    """A name that nobody else will draw."""
    return secrets.token_hex(8)


def extended(records: list[Record], record: Record) -> None:
    """Append; equal steps in a row of one session become one record."""
    last = records[-1] if records else None
    same = last is not None and last.session == record.session
    if last is not None and same and last.event.same_mechanism(record.event):
        records[-1] = Record(last.session, last.event.plus(record.event))
    else:
        records.append(record)


def merged(records: Iterable[Record]) -> list[GaussianEvent]:
    """The events in order, whoever recorded them; equal steps in a row are one."""
    events: list[GaussianEvent] = []
    for record in records:
        if events and events[-1].same_mechanism(record.event):
            events[-1] = events[-1].plus(record.event)
        else:
            events.append(record.event)
    return events


def missing(own: Iterable[Record], others: Iterable[Record]) -> list[Record]:
    """What others recorded and is not among one's own, session by session.

    Raises:
        LedgerError: both hold a session, and neither holds the beginning of the other's.
    """
    here, there = _by_session(own), _by_session(others)
    return [
        Record(session, event)
        for session, events in there.items()
        for event in _beyond(events, here.get(session, []))
    ]


def passes_again(
    own: Iterable[Record], others: Iterable[Record], lacking: Iterable[Record]
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


def _by_session(records: Iterable[Record]) -> dict[str, list[GaussianEvent]]:
    sequences: dict[str, list[Record]] = {}
    for record in records:
        extended(sequences.setdefault(record.session, []), record)
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
