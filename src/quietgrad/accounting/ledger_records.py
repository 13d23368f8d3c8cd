"""Who recorded what: histories that were continued twice can be told apart and added up.

Each `Ledger` object records under a session of its own, a random name. So a session's records are
one sequence, of which a copy holds the beginning or all; and two continuations of one checkpoint
are two sessions, however alike their steps are.
"""

import hashlib
import json
import secrets
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from quietgrad._version import __version__
from quietgrad.accounting.events import (
    ADJACENCIES,
    Adjacency,
    GaussianEvent,
    Passes,
    require_adjacency,
)
from quietgrad.errors import LedgerError


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


def extended(records: list[LedgerRecord], record: LedgerRecord) -> None:
    """Append; equal steps in a row of one session become one record."""
    last = records[-1] if records else None
    same = last is not None and last.session == record.session
    if last is not None and same and last.event.same_mechanism(record.event):
        records[-1] = LedgerRecord(last.session, last.event.plus(record.event))
    else:
        records.append(record)


def merged(records: Iterable[LedgerRecord]) -> list[GaussianEvent]:
    """The events in order, whoever recorded them; equal steps in a row are one."""
    events: list[GaussianEvent] = []
    for record in records:
        if events and events[-1].same_mechanism(record.event):
            events[-1] = events[-1].plus(record.event)
        else:
            events.append(record.event)
    return events


def missing(own: Iterable[LedgerRecord], others: Iterable[LedgerRecord]) -> list[LedgerRecord]:
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


def passes_again(
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


_FORMAT = 1
_RESTORED = "restored"


@dataclass(frozen=True)
class LedgerContent:
    """What a file holds, up to its last whole line."""

    id: str
    adjacency: Adjacency
    records: tuple[LedgerRecord, ...]
    hash: str
    size: int


def header(id: str, adjacency: Adjacency) -> bytes:
    """The first line of a new file."""
    content = {
        "quietgrad": __version__,
        "format": _FORMAT,
        "id": id,
        "adjacency": require_adjacency(adjacency),
    }
    return chained(content, "")[0]


def entry(record: LedgerRecord, before: str) -> tuple[bytes, str]:
    """The line of a record, and the hash that the next line builds on."""
    return chained({"event": record.event.to_dict(), "session": record.session}, before)


def restoration(steps: int, before: str) -> tuple[bytes, str]:
    """The line that says, for ever, that so many steps were missing here and follow."""
    return chained({_RESTORED: steps}, before)


def parsed(data: bytes, path: Path) -> LedgerContent:
    """What a file with these bytes holds; LedgerError if it was altered, or is no ledger."""
    whole, newline, rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if newline else []
    if not lines:
        raise LedgerError(
            f"{path} is no ledger: its first line is missing. If it was one, restore a copy;"
            " without it nobody can tell what was spent"
        )
    heading, digest = _verified(lines[0], "", path, 1)
    if heading.get("format") != _FORMAT:
        raise LedgerError(
            f"{path} is a ledger of format {heading.get('format')!r}, written by quietgrad"
            f" {heading.get('quietgrad')}: expected format {_FORMAT}"
        )
    if not isinstance(heading.get("id"), str) or heading.get("adjacency") not in ADJACENCIES:
        raise LedgerError(_altered(path, 1, "it names no history and adjacency"))
    records = []
    for number, line in enumerate(lines[1:], start=2):
        content, digest = _verified(line, digest, path, number)
        if _RESTORED in content:
            _warn_of_restoration(content, path, number)
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
    return LedgerContent(heading["id"], heading["adjacency"], tuple(records), digest, size)


def chained(content: Mapping[str, Any], before: str) -> tuple[bytes, str]:
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
        written, digest = chained(content, before)
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
