"""A statement as one HTML file that needs nothing else: no script, no font, no network."""

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from quietgrad._files import replace_file
from quietgrad._format import printed
from quietgrad.report.detection import LARGEST_USEFUL
from quietgrad.report.evidence import ReportError, is_number, is_share, measured_names
from quietgrad.report.inputs import AuditFindings, statement_of_folder
from quietgrad.report.statement import Statement
from quietgrad.report.svg import curves_by_epoch, epsilon_curve

if TYPE_CHECKING:
    from jinja2 import Template

_HEAD = 1000
_MARKS = (
    b'<meta name="generator" content="quietgrad">',
    b"<title>Privacy report: ",  # before there was the other
)


def require_replaceable(path: Path) -> None:
    """Refuse to overwrite a ledger, weights, or whatever else is not a report."""
    if os.path.lexists(path) and not _is_report(path):
        raise ReportError(
            f"{path} is there, and is not a report of quietgrad: it is not overwritten. Choose"
            " another place, or take it away"
        )


def _is_report(path: Path) -> bool:
    if not path.is_file():  # a folder; or a pipe, which might never end
        return False
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
    except OSError:
        return False
    return head.startswith(b"<!DOCTYPE html>") and any(mark in head for mark in _MARKS)


_HASH = re.compile("[0-9a-f]{32,}")


def write(statement: Statement, path: str | Path) -> None:
    """Write it as HTML; an older report is replaced as a whole.

    Raises:
        ReportError: something else is there, which stays as it is; or there is no place for it.
    """
    require_replaceable(Path(path))
    # A lone surrogate, which JSON can spell, is no character of any file.
    content = as_html(statement).encode(errors="replace")
    try:
        replace_file(Path(path), lambda stream: stream.write(content))
    except OSError as error:
        raise ReportError(
            f"{path} cannot be written ({error}): expected a place for a file"
        ) from error


def as_html(statement: Statement) -> str:
    """The whole page. Everything that comes from files is escaped."""
    return _template().render(
        s=statement,
        pairs=epsilon_curve(statement),
        curves=curves_by_epoch(statement),
        columns=[name.replace("_", " ") for name in _columns(statement)],
        rows=_rows(statement),
        as_json=_embedded(statement.as_dict()),
        config=_indented(statement.config),
        about_seed=_about_seed(statement.config or {}),
        useful=LARGEST_USEFUL,
        up=_up,
        number=_number,
        is_hash=_HASH.fullmatch,
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only for pages

    environment = Environment(
        loader=PackageLoader("quietgrad.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html")


def _columns(statement: Statement) -> list[str]:
    present = {name for line in statement.metrics for name in line}
    own = [name for name in ("epoch", "steps", "epsilon") if name in present]
    return [*own, *measured_names(statement.metrics)]


def _rows(statement: Statement) -> list[list[str]]:
    """The figures of each epoch: shares in per cent, epsilons rounded up."""
    columns = _columns(statement)
    shares = {name for name in columns if is_share(statement.metrics, name)}
    return [
        [_cell(name, line.get(name), is_share=name in shares) for name in columns]
        for line in statement.metrics
    ]


def _cell(name: str, value: Any, *, is_share: bool) -> str:
    if is_share and is_number(value):
        return f"{100 * value:.2f} %"
    return _up(value) if name == "epsilon" and is_number(value) else _number(value)


def _about_seed(config: dict[str, Any]) -> str:
    """What a number called seed gives away, right where it is shown."""
    if config.get("initial_seed") is None:
        return ""
    if config.get("seed") is not None:
        return "The seed fixes noise and sampling too: with it, nobody is protected."
    return (
        "initial_seed fixes the weights before training, and nothing else: it holds nothing"
        " private, and neither noise nor sampling follow from it."
    )


def _embedded(data: dict[str, Any]) -> Markup:
    """JSON inside of a script element, which nothing in it can end."""
    text = json.dumps(data, indent=1, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _indented(data: dict[str, Any] | None) -> str | None:
    return None if data is None else json.dumps(data, indent=2)


def _up(value: float | None) -> str:
    """A bound, rounded up."""
    return "not defined" if value is None else printed(value)


def _number(value: object) -> str:
    """A figure as it is, to the nearest of four digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


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
