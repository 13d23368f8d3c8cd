"""The picture of `quietgrad audit`: checked before anything is trained, drawn after."""

from pathlib import Path

from quietgrad.cli.audit_report import Report, scored_by
from quietgrad.cli.failures import Refusal
from quietgrad.plots import audit_figure, require_matplotlib

_ENDINGS = (".png", ".svg", ".pdf")


def require_drawable(file: Path) -> None:
    """Complain about what would only fail after the work is done.

    Raises:
        ValueError: such a file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    if file.suffix.lower() not in _ENDINGS:
        raise ValueError(f"--plot {file}: expected a name that ends in {', '.join(_ENDINGS)}")
    if not file.parent.is_dir():
        raise ValueError(f"--plot {file}: there is no folder {file.parent}")
    require_matplotlib()


def write_plot(file: Path, report: Report) -> None:
    """Draw, and write the file."""
    title = f"{report.recipe.name}, {report.result.canaries:,} {report.kind} canaries"
    figure = audit_figure(report.result, title=title, score=scored_by(report.kind))
    try:
        figure.savefig(file)
    except OSError as error:
        raise Refusal(f"--plot {file}: {error.strerror}") from error
