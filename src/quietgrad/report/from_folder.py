"""The statement of a run folder, or of a ledger file alone."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from quietgrad._checks import require_delta
from quietgrad._files import file_digest
from quietgrad.accounting import Ledger
from quietgrad.report.audited import AuditFindings, audited
from quietgrad.report.checkpoint import Checkpoint, read_checkpoint
from quietgrad.report.drawn_up import statement_of
from quietgrad.report.evidence import MODEL, Evidence, ReportError
from quietgrad.report.kept import checked_config, checked_result
from quietgrad.report.metrics import read_lines
from quietgrad.report.settings import Settings
from quietgrad.report.statement import Statement

LEDGER, SETTINGS, CONFIG = "ledger.jsonl", "settings.json", "config.json"
METRICS, RESULT, CHECKPOINT = "metrics.jsonl", "result.json", "checkpoint.pt"

T = TypeVar("T")


def statement_of_folder(
    path: str | Path, *, audit: AuditFindings | None = None, delta: float | None = None
) -> Statement:
    """What can be said from what a run left behind, also if it was interrupted.

    Args:
        path: the folder of a run, or a ledger file. Nothing in it is changed.
        audit: what an audit of such training found.
        delta: states epsilon at this delta instead of the run's own.

    Raises:
        ReportError: there is no ledger, or a file beside it cannot be understood.
        LedgerError: the ledger was altered.
    """
    return statement_of(evidence_in(Path(path), audit=audit, delta=delta))


def evidence_in(
    path: Path, *, audit: AuditFindings | None = None, delta: float | None = None
) -> Evidence:
    """Everything that a run left behind."""
    place = _ledger_in(path)
    beside = path if path.is_dir() else None
    found: dict[str, str] = {}
    if beside is not None and (beside / MODEL).is_file():
        found[MODEL] = file_digest(beside / MODEL)
    metrics, cut = _read(beside, METRICS, found, lambda text: read_lines(text, METRICS)) or ((), ())
    settings = _read(beside, SETTINGS, found, lambda text: Settings.from_dict(_object(text)))
    config = _read(beside, CONFIG, found, lambda text: checked_config(_object(text)))
    result = _read(beside, RESULT, found, lambda text: checked_result(_object(text)))
    checkpoint, damage = _checkpoint(beside)
    # Last: a run that is going on writes it before everything else, so it must not seem behind.
    ledger, notices = _ledger(place)
    return Evidence(
        ledger,
        settings,
        config=config,
        metrics=metrics,
        result=result,
        checkpoint=checkpoint,
        audit=None if audit is None else audited(audit),
        delta=None if delta is None else require_delta("delta", delta),
        hashes={LEDGER: file_digest(place), **found},
        notices=(*notices, *cut, *damage),
    )


def read_audit(path: Path) -> Mapping[str, Any]:
    """What `quietgrad audit --json` printed to a file."""
    found = _read(path.parent, path.name, {}, _object)
    if found is None:
        raise ReportError(f"{path} is not there: expected what quietgrad audit --json prints")
    return found


def _ledger_in(path: Path) -> Path:
    place = path / LEDGER if path.is_dir() else path
    if place.is_file():
        return place
    where = "holds no ledger" if path.is_dir() else "is not there"
    raise ReportError(
        f"{path} {where}: expected the folder of a run, with a {LEDGER} in it, or a ledger file."
        " Without a ledger nobody can tell what was spent"
    )


def _ledger(path: Path) -> tuple[Ledger, tuple[str, ...]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ledger = Ledger.read(path)
    return ledger, tuple(f"{each.message}." for each in caught)


def _checkpoint(folder: Path | None) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """What a report needs of it. Who trains can do without it, so damage is only a notice."""
    if folder is None or not (folder / CHECKPOINT).exists():
        return None, ()
    try:
        return read_checkpoint(folder / CHECKPOINT), ()
    except ValueError as error:
        notice = (
            f"{CHECKPOINT} cannot be understood ({error}): whether it holds more steps than the"
            " ledger is not known."
        )
        return None, (notice,)


def _read(
    folder: Path | None, name: str, hashes: dict[str, str], parse: Callable[[str], T]
) -> T | None:
    """What a file says; None if it is not there. Its hash is noted."""
    if folder is None or not (folder / name).exists():
        return None
    path = folder / name
    try:
        content = path.read_bytes()
        found = parse(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ReportError(
            f"{path} cannot be understood ({error}): restore a copy of it, or take it away to"
            " have a report that says it is missing"
        ) from error
    hashes[name] = hashlib.sha256(content).hexdigest()
    return found


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object")
    return found
