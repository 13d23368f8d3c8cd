"""What a report rests on: the files of a run or a live engine, and an audit."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from quietgrad._checks import require_choice, require_count, require_delta, require_rate
from quietgrad._format import plain
from quietgrad._version import versions_here
from quietgrad.accounting.accountants import DEFAULT_ACCOUNTANT
from quietgrad.accounting.events import Unit
from quietgrad.accounting.ledger import Ledger
from quietgrad.errors import LedgerError, QuietgradError
from quietgrad.report.statement import Noun
from quietgrad.runs.schema import (
    LEDGER,
    CheckpointSummary,
    RunFiles,
    RunFolderError,
    RunSettings,
    check_config,
    check_metrics,
    check_result,
    check_stated,
    parse_object,
    read_file,
    read_run,
)


class ReportError(QuietgradError):
    """There is nothing to report on, or what there is cannot be read."""


@dataclass(frozen=True)
class Evidence(RunFiles):
    """Everything that is known of a run.

    Attributes:
        audit: what an audit of such training found, as plain data.
        delta: asked for by the reader, instead of the run's own.
        is_live: whether this comes from an engine, not from files.
        versions: of the programs that the report is written with.
    """

    audit: dict[str, Any] | None = None
    delta: float | None = None
    is_live: bool = False
    versions: Mapping[str, str] = field(default_factory=versions_here)

    def as_record(self) -> dict[str, Any]:
        """All of it as plain data, without what the statement has elsewhere."""
        kept = self.checkpoint
        return {
            "is_live": self.is_live,
            "ledger": plain(self.ledger.summary()),
            "result": None if self.result is None else plain(self._public_result),
            "checkpoint": None
            if kept is None
            else {"steps_taken": kept.steps_taken, "ledger": plain(kept.ledger.summary())},
            "files": dict(self.hashes),
            "notices": list(self.notices),
            "versions": dict(self.versions),
        }

    @property
    def _public_result(self) -> Mapping[str, Any] | None:
        """The result without figures of a model that was trained without privacy."""
        if self.result is None or self.result.get("non_private") is None:
            return self.result
        return {**self.result, "non_private": _OMITTED}

    @property
    def head(self) -> str:
        """SHA-256 of what is known of the run, but not of what follows from it.

        The same for a folder and for every report on it, at any delta and by any version, until the
        run goes on or something else is stated. The weights are in it by the hash that the result
        has, and the ledger by the hash that ends its chain.
        """
        settings = None if self.settings is None else self.settings.data
        content = {
            "format": _HEAD_FORMAT,
            "is_live": self.is_live,
            "ledger": self.ledger.summary(),
            "settings": settings,
            "config": self.config,
            "metrics": self.metrics,
            "result": self._public_result,
            "stated": self.stated,
            "audit": self.audit,
        }
        if self.notices:  # of damaged files; without any, as it always was
            content["notices"] = self.notices
        canonical = json.dumps(plain(content), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode(errors="surrogatepass")).hexdigest()

    @property
    def private_result(self) -> Mapping[str, Any]:
        """What the result says of the private training."""
        found = (self.result or {}).get("private")
        return found if isinstance(found, Mapping) else {}

    @property
    def options(self) -> Mapping[str, Any]:
        """What was asked for, by the names of the options."""
        found = (self.config or {}).get("settings")
        return found if isinstance(found, Mapping) else {}

    @property
    def unit(self) -> Unit | None:
        """What is drawn and protected, if it is not one record."""
        return self.ledger.unit

    @property
    def noun(self) -> Noun:
        """The same in words."""
        return Noun() if self.unit is None else Noun(self.unit.name, self.unit.plural)

    @property
    def configured_delta(self) -> float | None:
        """The delta of the configuration."""
        found = self.options.get("delta")
        return found if isinstance(found, float) and 0 < found < 1 else None

    @property
    def stated_delta(self) -> float | None:
        """The run's own delta; None if it states none."""
        return self.configured_delta if self.settings is None else self.settings.delta

    @property
    def accountant(self) -> str:
        """The accountant of the claim."""
        return DEFAULT_ACCOUNTANT if self.settings is None else self.settings.accountant

    @property
    def has_seeded_noise(self) -> bool:
        """Whether the ledger or the settings say that noise was seeded."""
        in_ledger = any(event.noise == "seeded" for event in self.ledger.events)
        return in_ledger or (self.settings is not None and self.settings.seeded)

    @property
    def is_seeded(self) -> bool:
        """Whether noise can be recomputed, by ledger, settings or result."""
        return self.has_seeded_noise or (self.result or {}).get("seed") is not None

    @property
    def weight_steps(self) -> int | None:
        """Updates in the weights; None if it is not known."""
        if self.is_live and self.settings is not None:
            return self.settings.steps_taken
        steps = self.private_result.get("steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else None


@runtime_checkable
class _Result(Protocol):
    def as_dict(self) -> dict[str, Any]:
        """As plain data."""


AuditFindings = _Result | Mapping[str, Any]
"""The result of an audit, or the JSON object that ``quietgrad audit --json`` prints."""

_HEAD_FORMAT = 1
_OMITTED = "trained, and not in this report"

_DEFAULTS = {"kind": None, "seeded": False, "could_reject": True}  # where an audit does not say
_SLACK = 0.01  # as far as a measured bound may be off


def evidence_in(
    path: Path, *, audit: AuditFindings | None = None, delta: float | None = None
) -> Evidence:
    """Everything that a run left behind, in its folder or in a ledger alone."""
    is_folder = path.is_dir()
    ledger = path / LEDGER if is_folder else path
    if not ledger.is_file():
        raise ReportError(
            f"{path} {'holds no ledger' if is_folder else 'is not there'}: expected the folder of a"
            f" run, with a {LEDGER} in it, or a ledger file. Without a ledger it is not known what"
            " was spent"
        )
    try:
        found = read_run(ledger, path if is_folder else None)
    except RunFolderError as error:
        raise ReportError(f"{error}, or move it away for a report without it") from error
    return Evidence(
        **vars(found),
        audit=None if audit is None else check_audit(audit),
        delta=None if delta is None else require_delta("delta", delta),
    )


def evidence_of(statement: Mapping[str, Any]) -> Evidence:
    """What a statement, as plain data, says that it was made from.

    Raises:
        ReportError: it does not say so, or what it says is not valid.
    """
    try:
        record, settings = statement["evidence"], statement["settings"]
        kept, delta = record["checkpoint"], statement["epsilons"]["delta"]
        return Evidence(
            Ledger.from_summary(record["ledger"]),
            None if settings is None else RunSettings.from_dict(settings),
            None if statement["config"] is None else check_config(statement["config"]),
            tuple(check_metrics(line, "an epoch") for line in statement["metrics"]),
            None if record["result"] is None else check_result(_with_infinity(record["result"])),
            None if kept is None else _checkpoint_of(kept),
            check_stated(statement["stated"]),
            hashes=_checked("files", record["files"], _HASH),
            notices=tuple(map(str, record["notices"])),
            audit=None if statement["audit"] is None else check_audit(statement["audit"]),
            delta=None if delta is None else require_delta("delta", delta),
            is_live=require_choice("is_live", record["is_live"], (True, False)),
            versions=_checked("versions", record["versions"], _VERSION),
        )
    except (KeyError, TypeError, ValueError, AttributeError, LedgerError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else f"{error}"
        raise ReportError(f"the evidence in the statement is not valid: {what}") from error


def _checkpoint_of(record: Mapping[str, Any]) -> CheckpointSummary:
    steps = require_count("steps_taken", record["steps_taken"], at_least=0)
    return CheckpointSummary(steps, Ledger.from_summary(record["ledger"]))


_HASH, _VERSION = re.compile("[0-9a-f]{64}"), re.compile(r"[0-9][\w.+-]{,50}|unknown", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,30}", re.ASCII)


def _checked(what: str, data: Mapping[str, Any], expected: re.Pattern[str]) -> dict[str, str]:
    """Names and what belongs to each; no place for sentences that nothing confirms."""
    for name, value in data.items():
        if not (_NAME.fullmatch(name) and expected.fullmatch(value)):
            raise ValueError(f"{what} has {name!r}: {value!r}, expected {expected.pattern}")
    return dict(data)


def _with_infinity(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose epsilon is the word that stands for infinity in JSON."""
    private = result.get("private")
    if not isinstance(private, dict) or private.get("epsilon") != "infinity":
        return result
    return {**result, "private": {**private, "epsilon": math.inf}}


def read_audit(path: Path) -> Mapping[str, Any]:
    """What `quietgrad audit --json` printed to a file."""
    try:
        found = read_file(path, parse_object, {})
    except RunFolderError as error:
        raise ReportError(str(error)) from error
    if found is None:
        raise ReportError(f"{path} is not there: expected what quietgrad audit --json prints")
    return found


def check_audit(findings: AuditFindings) -> dict[str, Any]:
    """The findings as plain data; ValueError if no audit gave them."""
    data = plain(findings.as_dict() if isinstance(findings, _Result) else findings)
    try:
        require_choice("violated", data["violated"], (True, False))
        data = {**_DEFAULTS, **data}
        for name in ("seeded", "could_reject"):
            require_choice(name, data[name], (True, False))
        require_rate("confidence", data["confidence"])
        require_delta("delta", data["delta"])
        for name in ("canaries", "runs"):
            require_count(name, data[name], at_least=1)
        for name in ("lower_bound", "claimed_epsilon", "p_value"):
            value = data[name]
            data[name] = float(value) if isinstance(value, int | float | str) else -1.0
            if isinstance(value, bool) or not data[name] >= 0:
                raise ValueError(f"{name}={value!r} is not valid: expected a number >= 0")
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
    """Refuse figures that contradict the verdict beside them."""
    p_value, bound, claimed = (data[name] for name in ("p_value", "lower_bound", "claimed_epsilon"))
    if p_value > 1:
        raise ValueError(f"p_value={p_value!r} is not valid: expected a probability")
    found = None
    if data["violated"] != (p_value < 1 - data["confidence"]):
        found = f", with a p-value of {p_value:.4g} at confidence {data['confidence']}"
    elif not data["violated"] and bound > claimed * (1 + _SLACK):
        found = f" of epsilon {claimed:.4g}, with a lower bound of {bound:.4g}"
    if found is not None:
        verdict = "rejected its claim" if data["violated"] else "did not reject its claim"
        raise ValueError(
            f"this audit contradicts itself: it {verdict}{found}. Expected what quietgrad audit"
            " --json printed"
        )
