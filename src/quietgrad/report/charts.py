"""Which curves a statement is shown with."""

from markupsafe import Markup

from quietgrad.report.curves import Chart
from quietgrad.report.metrics import is_share, measured_names, series
from quietgrad.report.statement import Statement

_MOST = 6  # as many as anybody looks at; the table has all
_FEWEST_POINTS = 2  # a single one is no curve


def epsilon_curve(statement: Statement) -> Markup:
    """All pairs that hold."""
    figures = statement.epsilons
    return Chart(
        "pairs",
        "Epsilon for every delta",
        [(pair.delta, pair.epsilon) for pair in figures.curve],
        "delta",
        "epsilon",
        is_log=True,
        marked=figures.delta,
    ).svg()


def curves_by_epoch(statement: Statement) -> list[tuple[str, Markup]]:
    """What was measured, and what was spent, with captions."""
    names = [*measured_names(statement.metrics)[:_MOST], "epsilon"]
    drawn = [name for name in names if len(series(statement.metrics, name)) >= _FEWEST_POINTS]
    return [_by_epoch(statement, name, index) for index, name in enumerate(drawn)]


def _by_epoch(statement: Statement, name: str, index: int) -> tuple[str, Markup]:
    points = series(statement.metrics, name)
    words = name.replace("_", " ")
    shared = is_share(statement.metrics, name)
    title = f"{words[:1].upper()}{words[1:]} by epoch"
    chart = Chart(f"epochs-{index}", title, points, "epoch", words, is_share=shared)
    return title, chart.svg()
