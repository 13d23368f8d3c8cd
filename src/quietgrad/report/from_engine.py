"""The statement of an engine that is there to be asked."""

from collections.abc import Iterable, Mapping
from typing import Any

from quietgrad.accounting import Ledger
from quietgrad.report.audited import AuditFindings, audited
from quietgrad.report.drawn_up import statement_of
from quietgrad.report.evidence import Evidence
from quietgrad.report.metrics import checked_line
from quietgrad.report.settings import Settings
from quietgrad.report.statement import Statement


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
            Settings.from_dict(settings),
            metrics=lines,
            audit=None if audit is None else audited(audit),
            is_live=True,
        )
    )
