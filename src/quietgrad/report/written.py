"""The report of a run folder, in that folder."""

from pathlib import Path

from quietgrad.report.audited import AuditFindings
from quietgrad.report.from_folder import statement_of_folder
from quietgrad.report.html import write

REPORT = "report.html"


def write_for_folder(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    audit: AuditFindings | None = None,
    delta: float | None = None,
) -> Path:
    """Draw up the report of a run folder, or of a ledger file, and write it.

    Args:
        folder: of the run.
        out: the file to write. None for ``report.html`` in the folder (or beside the ledger); with
            a delta ``report-delta-1e-06.html``, or whatever it is.
        audit: what an audit of such training found.
        delta: states epsilon at this delta instead of the run's own.

    Returns:
        The file that was written; an older one is replaced.
    """
    statement = statement_of_folder(folder, audit=audit, delta=delta)
    place = default_place(Path(folder), delta) if out is None else Path(out)
    write(statement, place)
    return place


def default_place(path: Path, delta: float | None = None) -> Path:
    """Where a report goes if nobody says: one at another delta does not replace the run's own."""
    name = REPORT if delta is None else f"report-delta-{delta!r}.html"
    return (path if path.is_dir() else path.parent) / name
