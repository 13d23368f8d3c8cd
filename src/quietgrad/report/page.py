"""Reports in files: written, never replaced by a worse one, and read again."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from quietgrad._files import replace_file
from quietgrad.report.assess import statement_of_folder
from quietgrad.report.evidence import AuditFindings, ReportError
from quietgrad.report.html import as_html
from quietgrad.report.statement import Statement
from quietgrad.runs.schema import REPORT

# Writing.

_HEAD = 1000
_MARKS = (
    b'<meta name="generator" content="quietgrad">',
    b"<title>Privacy report: ",  # of reports written before the other existed
)


def write_for_folder(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    audit: AuditFindings | None = None,
    delta: float | None = None,
) -> Path:
    """Write the report of a run folder, or of a ledger file.

    Args:
        folder: of the run.
        out: the file to write. None for ``report.html`` in the folder, or ``report-ledger.html``
            beside a ledger alone; with a delta of 1e-6 for example ``report-delta-1e-06.html``.
        audit: what an audit of such training found.
        delta: states epsilon at this delta instead of the run's own.

    Returns:
        The file that was written; an older report is replaced, unless it says more than the folder
        can prove.

    Raises:
        ReportError: there is nothing to report on, or something else than a report is there, or the
            report that is there would become worse.
    """
    statement = statement_of_folder(folder, audit=audit, delta=delta)
    place = default_place(Path(folder), delta) if out is None else Path(out)
    require_not_worse(statement, place)
    write(statement, place)
    return place


def default_place(path: Path, delta: float | None = None) -> Path:
    """The default file. A report at another delta, or of a ledger alone, has its own name."""
    folder, report = (path, REPORT) if path.is_dir() else (path.parent, f"report-{path.stem}.html")
    return folder / (report if delta is None else f"{Path(report).stem}-delta-{delta!r}.html")


def write(statement: Statement, path: str | Path, *, signature: bytes = b"") -> None:
    """Write it as HTML; an older report is replaced as a whole.

    Raises:
        ReportError: something else is there, and stays; or the file cannot be written.
    """
    write_page(as_bytes(statement) + signature, Path(path))


def write_page(content: bytes, path: Path) -> None:
    """Put a page in its place; only another report is replaced."""
    if os.path.lexists(path) and not is_report(path):
        raise ReportError(
            f"{path} exists and is not a report of quietgrad: it is not overwritten. Choose another"
            " file name, or move it away"
        )
    try:
        replace_file(path, lambda stream: stream.write(content))
    except OSError as error:
        raise ReportError(
            f"{path} cannot be written ({error}): expected a place for a file"
        ) from error


def as_bytes(statement: Statement) -> bytes:
    """The page as it is in a file."""
    # A lone surrogate, which JSON can spell, is no character of any file.
    return as_html(statement).encode(errors="replace")


def is_report(path: Path) -> bool:
    """Whether a file begins as a report does."""
    if not path.is_file():  # a folder; or a pipe, which might never end
        return False
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return False
    return _begins_as_report(head)


def _begins_as_report(head: bytes) -> bool:
    return head.startswith(b"<!DOCTYPE html>") and any(mark in head for mark in _MARKS)


# Never worse.

_SOURCES = {
    "settings": "settings.json, with what the engine did",
    "config": "config.json, with what was asked for",
    "result": "result.json, with what came out of the run",
    "metrics": "metrics.jsonl, with the figures of all epochs",
    "stated": "stated.json, with what the user stated",
}
_SIGNED = "it is signed, and the new one would not be (--sign KEY)"


def require_not_worse(statement: Statement, place: Path, *, is_signed: bool = False) -> None:
    """Refuse to replace a report that says more than what there is now can prove.

    A report that becomes worse because more is known is replaced: there may be more releases, an
    audit that failed, or files that contradict each other.

    Args:
        statement: the new one.
        place: where the old report may be.
        is_signed: whether the new one will be.

    Raises:
        ReportError: the old one was made from what is missing now.
    """
    old = _earlier_page(place)
    if old is None:
        return
    lost = [] if old.signature is None or is_signed else [_SIGNED]
    lost += _lost(old.statement, statement)
    if lost:
        raise ReportError(
            f"{place} is kept, because a new report would say less. What the report that is there"
            f" has, and this one has not: {'; '.join(lost)}. Restore what is missing (a program"
            " with a training loop of its own keeps it with engine.save_run(DIR)), or write another"
            " file (--out FILE)"
        )


def earlier_head(place: Path) -> str | None:
    """The head of the report that is there; None without one."""
    old = _earlier_page(place)
    head = None if old is None else old.statement.get("head")
    return head if isinstance(head, str) else None


def _earlier_page(place: Path) -> "Page | None":
    if not is_report(place):
        return None
    try:
        return read_page(place)
    except ReportError:
        return None  # damaged, or of an early version: there is nothing to lose


def _lost(old: Mapping[str, Any], new: Statement) -> list[str]:
    """What an earlier statement on the same ledger rests on, and a new one does not."""
    now = new.evidence or {}
    try:
        # Earlier versions did not say what a report was made from, but for the settings.
        before = old.get("evidence") or {"ledger": {"id": _ledger_of(old["settings"])}}
        if before["ledger"]["id"] != now["ledger"]["id"]:
            return []
        return _compare({**old, **before}, {**new.as_dict(), **now})
    except (KeyError, TypeError):
        return []  # not written by quietgrad


def _ledger_of(settings: Mapping[str, Any]) -> object:
    return settings["progress"]["ledger_id"]


def _compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    lost = [words for name, words in _SOURCES.items() if old.get(name) and not new[name]]
    if "events" in old["ledger"]:
        before, now = (
            sum(event["steps"] for event in each["ledger"]["events"]) for each in (old, new)
        )
        if before > now:
            lost.append(f"a ledger of {before:,} steps (here: {now:,}, so it was cut)")
    before, now = (len(each["metrics"]) for each in (old, new))
    if before > now > 0:
        lost.append(f"the figures of {before:,} epochs (here: {now:,})")
    if old.get("audit") and not new["audit"]:
        lost.append("the result of an audit (--audit FILE)")
    stated = old.get("stated") or {}
    if new["stated"]:
        lost += [f"{name}, as stated by the user" for name in stated if name not in new["stated"]]
    return lost


# Reading.

_LARGEST = 64 * 2**20
_BEGIN, _END = b'<script type="application/json" id="statement">\n', b"\n</script>"
_LAST = b"</html>"
_SIGNATURE = re.compile(
    rb"\n<!-- quietgrad signature, ed25519: ([0-9a-f]{64}) ([0-9a-f]{128}) -->\n?\Z"
)


@dataclass(frozen=True)
class PageSignature:
    """What the last line of a signed report holds."""

    public_key: bytes
    value: bytes


@dataclass(frozen=True)
class Page:
    """A report as it was received.

    Attributes:
        content: the file without its signature.
        statement: the JSON inside of it, as plain data; nothing in it is verified.
        signature: None if it is not signed.
    """

    content: bytes
    statement: dict[str, Any]
    signature: PageSignature | None


class BrokenPageError(ReportError):
    """A report that was cut off or changed, so that its statement cannot be read."""


def read_page(path: Path) -> Page:
    """A report, and the statement inside of it.

    Raises:
        BrokenPageError: it begins as a report does, and there is no statement to read.
        ReportError: the file is no report, or cannot be read.
    """
    return parse_page(_read(path), str(path))


def _read(path: Path) -> bytes:
    if not path.is_file():
        what = "is not there" if not os.path.lexists(path) else "is no file"
        raise ReportError(f"{path} {what}: expected a report, such as report.html")
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise ReportError(
                f"{path} has {size / 2**20:,.0f} MiB: expected a report, which has at most"
                f" {_LARGEST // 2**20}"
            )
        return path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path} cannot be read ({error}): expected a report") from error


def parse_page(data: bytes, name: str) -> Page:
    """The same from the bytes of a file."""

    def refuse(why: str) -> NoReturn:
        raise BrokenPageError(f"{name} is a report that was changed or damaged: {why}")

    if not _begins_as_report(data[:_HEAD]):
        kind = "binary data" if b"\0" in data[:_HEAD] else "something else"
        raise ReportError(f"{name} is no report of quietgrad: it begins with {kind}")
    found = _SIGNATURE.search(data)
    signature = None
    if found is not None:
        key, value = (bytes.fromhex(each.decode()) for each in found.groups())
        signature, data = PageSignature(key, value), data[: found.start()]
    if b"\0" in data:
        refuse("it contains zero bytes")
    if not data.endswith(_LAST):
        refuse("its end is missing, or something follows it")
    if data.count(b'id="statement"') != 1 or data.count(_BEGIN) != 1:
        refuse(f"it has {data.count(_BEGIN)} statements; expected one")
    embedded, end, _ = data.partition(_BEGIN)[2].partition(_END)
    if not end or b"<" in embedded:
        refuse("its statement does not end as it should")
    return Page(data, _parse(embedded, refuse), signature)


def _parse(embedded: bytes, refuse: Any) -> dict[str, Any]:
    """Strict JSON: a name once, and no numbers that JSON does not have."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{twice!r} stands in it twice")
        return dict(found)

    def no_constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is no number of JSON")

    try:
        content = json.loads(embedded.decode(), object_pairs_hook=pairs, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        refuse(f"its statement is not JSON as quietgrad writes it ({error})")
    if not isinstance(content, dict):
        refuse("its statement is no JSON object")
    found: dict[str, Any] = content
    return found
