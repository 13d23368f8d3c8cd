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
        out: the file to write. None for ``report.html`` in the folder, or ``report-ledger.html``
            beside a ledger alone; with a delta ``report-delta-1e-06.html``, or whatever it is.
        audit: what an audit of such training found.
        delta: states epsilon at this delta instead of the run's own.

    Returns:
        The file that was written; an older report is replaced.

    Raises:
        ReportError: there is nothing to report on, or something else than a report is there.
    """
    statement = statement_of_folder(folder, audit=audit, delta=delta)
    place = default_place(Path(folder), delta) if out is None else Path(out)
    write(statement, place)
    return place


def default_place(path: Path, delta: float | None = None) -> Path:
    """Where a report goes if nobody says.

    One at another delta, or of the ledger alone, does not replace the run's own.
    """
    folder, report = (path, REPORT) if path.is_dir() else (path.parent, f"report-{path.stem}.html")
    name = Path(report)
    return folder / (name if delta is None else f"{name.stem}-delta-{delta!r}.html")
