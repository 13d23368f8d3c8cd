"""A statement as one HTML file that needs nothing else: no script, no font, no network."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from quietgrad._files import replace_file
from quietgrad._rounding import printed
from quietgrad.report.charts import curves_by_epoch, epsilon_curve
from quietgrad.report.evidence import ReportError
from quietgrad.report.metrics import measured_names
from quietgrad.report.statement import Statement

if TYPE_CHECKING:
    from jinja2 import Template

_USEFUL = 1e3  # a larger epsilon protects nobody


def write(statement: Statement, path: str | Path) -> None:
    """Write it as HTML; an older file is replaced as a whole."""
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
        columns=_columns(statement),
        as_json=_embedded(statement.as_dict()),
        config=_indented(statement.config),
        most=_USEFUL,
        up=_up,
        number=_number,
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
