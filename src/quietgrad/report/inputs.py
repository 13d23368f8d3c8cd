"""What a run keeps of its request and its result: checked where a report rests on it."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from quietgrad._checks import require_choice, require_count, require_delta, require_rate
from quietgrad._files import file_digest
from quietgrad.accounting import accountants
from quietgrad.accounting.ledger import Ledger
from quietgrad.report.assessment import statement_of
from quietgrad.report.evidence import (
    MODEL,
    Checkpoint,
    Evidence,
    ReportError,
    RunSettings,
    checked_line,
    read_checkpoint,
    read_lines,
)
from quietgrad.report.statement import Statement, plain


def checked_config(config: dict[str, Any]) -> dict[str, Any]:
    """As it is; ValueError if it cannot be what a run was asked to do."""
    _require("recipe", config.get("recipe"), str | None)
    _require_seed(config)
    options = config.get("settings")
    _require("settings", options, Mapping | None)
    if options and options.get("delta") is not None:
        require_delta("delta", options["delta"])
    return config


def checked_result(result: dict[str, Any]) -> dict[str, Any]:
    """As it is; ValueError if it cannot be what came out of a run."""
    private = result.get("private")
    _require("private", private, Mapping)
    assert isinstance(private, Mapping)
    _require_seed(result)
    require_count("steps", private.get("steps"), at_least=0)
    epsilon, accountant = private.get("epsilon"), private.get("accountant")
    if epsilon is not None and not _is_epsilon(epsilon):
        raise ValueError(f"epsilon={epsilon!r} is not valid: expected a number >= 0")
    if accountant is not None:
        accountants.resolve(str(accountant))
    if private.get("delta") is not None:
        require_delta("delta", private["delta"])
    return result


def _is_epsilon(value: Any) -> bool:
    """Infinity is one: with too little noise nothing is bounded."""
    return not isinstance(value, bool) and isinstance(value, int | float) and value >= 0


def _require_seed(data: Mapping[str, Any]) -> None:
    seed = data.get("seed")
    if isinstance(seed, bool):
        raise ValueError(f"seed={seed!r} is not valid: expected a whole number, or null")
    _require("seed", seed, int | None)


def _require(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}={value!r} is not valid: expected {_WORDS[kind]}")


_WORDS: dict[Any, str] = {
    str | None: "a name",
    int | None: "a whole number, or null",
    Mapping: "an object",
    Mapping | None: "an object",
}


@runtime_checkable
class _Result(Protocol):
    def as_dict(self) -> dict[str, Any]:
        """As plain data."""


AuditFindings = _Result | Mapping[str, Any]
"""The result of an audit, or the JSON object that ``quietgrad audit --json`` prints."""

_USUAL = {"kind": None, "seeded": False, "could_reject": True}  # where an audit does not say
_SLACK = 0.01  # as far as a measured bound may be off


def audited(findings: AuditFindings) -> dict[str, Any]:
    """As plain data; ValueError if no audit gave this."""
    data = plain(findings.as_dict() if isinstance(findings, _Result) else findings)
    try:
        require_choice("violated", data["violated"], (True, False))
        data = {**_USUAL, **data}
        for name in ("seeded", "could_reject"):
            require_choice(name, data[name], (True, False))
        require_rate("confidence", data["confidence"])
        require_delta("delta", data["delta"])
        for name in ("canaries", "runs"):
            require_count(name, data[name], at_least=1)
        for name in ("lower_bound", "claimed_epsilon", "p_value"):
            data[name] = _not_negative(name, data[name])
        _require_consistent(data)
    except (KeyError, TypeError) as error:
        missing = f" (it has no {error})" if isinstance(error, KeyError) else f" ({error})"
        raise ValueError(
            f"this is not what an audit found{missing}: expected the result of"
            " quietgrad.audit, or what quietgrad audit --json prints"
        ) from error
    found: dict[str, Any] = plain(data)
    return found


def _require_consistent(data: Mapping[str, Any]) -> None:
    """Refuse figures that say something else than the verdict beside them."""
    p_value, bound, claimed = (data[name] for name in ("p_value", "lower_bound", "claimed_epsilon"))
    if p_value > 1:
        raise ValueError(f"p_value={p_value!r} is not valid: expected a probability")
    verdict = "rejected its claim" if data["violated"] else "did not reject its claim"
    if data["violated"] != (p_value < 1 - data["confidence"]):
        raise ValueError(
            f"this audit contradicts itself: it {verdict}, with a p-value of {p_value:.4g} at"
            f" confidence {data['confidence']}. Expected what quietgrad audit --json printed"
        )
    if not data["violated"] and bound > claimed * (1 + _SLACK):
        raise ValueError(
            f"this audit contradicts itself: it {verdict} of epsilon {claimed:.4g}, with a lower"
            f" bound of {bound:.4g}. Expected what quietgrad audit --json printed"
        )


def _not_negative(name: str, value: object) -> float:
    number = float(value) if isinstance(value, int | float | str) else -1.0
    if isinstance(value, bool) or not number >= 0:
        raise ValueError(f"{name}={value!r} is not valid: expected a number >= 0")
    return number


def statement_of_engine(
    ledger: Ledger,
    settings: Mapping[str, Any],
    *,
    audit: AuditFindings | None = None,
    metrics: Iterable[Mapping[str, Any]] = (),
) -> Statement:
    """What holds so far.

    Args:
        ledger: of the engine.
        settings: what `engine.settings()` gives.
        audit: what an audit found.
        metrics: one mapping per epoch.
    """
    lines = tuple(checked_line(line, f"metrics[{index}]") for index, line in enumerate(metrics))
    return statement_of(
        Evidence(
            ledger,
            RunSettings.from_dict(settings),
            metrics=lines,
            audit=None if audit is None else audited(audit),
            is_live=True,
        )
    )


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
    settings = _read(beside, SETTINGS, found, lambda text: RunSettings.from_dict(_object(text)))
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
