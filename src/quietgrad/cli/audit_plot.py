"""The picture of `quietgrad audit`: claim, bounds and scores."""

from pathlib import Path

from quietgrad.cli.audit_report import Report, scored_by
from quietgrad.cli.picture import write_figure
from quietgrad.plots import audit_figure


def write_plot(file: Path, report: Report) -> None:
    """Draw, and write the file."""
    title = f"{report.recipe.name}, {report.result.canaries:,} {report.kind} canaries"
    write_figure(audit_figure(report.result, title=title, score=scored_by(report.kind)), file)
