"""The lines of a ledger file: JSON, each with the SHA-256 of the line before it and of itself.

After the heading, a line is a record, or says that records which the file lacked follow it.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietgrad._version import __version__
from quietgrad.accounting.adjacency import ADJACENCIES, Adjacency, require_adjacency
from quietgrad.accounting.ledger_records import Record
from quietgrad.errors import LedgerError

_FORMAT = 1
_RESTORED = "restored"


@dataclass(frozen=True)
class LedgerContent:
    """What a file holds, up to its last whole line."""

    id: str
    adjacency: Adjacency
    records: tuple[Record, ...]
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


def entry(record: Record, before: str) -> tuple[bytes, str]:
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


def _record(content: Mapping[str, Any], id: str, path: Path, number: int) -> Record:
    try:
        session = {"session": content["session"]} if "session" in content else {}
        return Record.from_dict({**content["event"], **session}, unnamed=id)
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
