"""The plot of `quietgrad epsilon`: checked before anything is computed, drawn after."""

from pathlib import Path

from quietgrad.accounting import Passes, Poisson, TruncatedPoisson
from quietgrad.cli import wording
from quietgrad.cli.computing import computing
from quietgrad.cli.epsilon_report import Report
from quietgrad.cli.picture import require_drawable, write_figure
from quietgrad.cli.spent import Question, Spent
from quietgrad.plots import EpsilonCurve, epsilon_figure, epsilon_over_steps


def require_plottable(file: Path, question: Question) -> None:
    """Complain about what would only fail after the work is done.

    Raises:
        ValueError: such a plot cannot be drawn or written.
        MissingExtraError: matplotlib is not installed.
    """
    if question.asked != "epsilon":
        raise ValueError("--plot draws epsilon over steps: it needs --delta, not --epsilon")
    require_drawable(file)


def write_plot(file: Path, report: Report) -> None:
    """Compute the curves, draw them, write the file."""
    with computing("Computing epsilon over steps"):
        curves = {
            _label(result, report): _curve(result, report)
            for result in report.results
            if result.value is not None
        }
        figure = epsilon_figure(curves, title=_title(report))
    write_figure(figure, file)


def _curve(result: Spent, report: Report) -> EpsilonCurve:
    plan = report.plan
    return epsilon_over_steps(
        noise_multiplier=report.noise_multiplier,
        sampling=plan.sampling,
        steps=plan.steps,
        delta=report.question.at,
        accountant=result.accountant,
        adjacency=plan.adjacency,
    )


def _label(result: Spent, report: Report) -> str:
    bound = result.is_guarantee
    words = wording.what_it_is(result, report.results) if bound else wording.APPROXIMATION
    return f"{result.accountant}: {result}, {words}"


def _title(report: Report) -> str:
    plan, delta = report.plan, report.question.at
    match plan.sampling:
        case Poisson(rate) | TruncatedPoisson(rate):
            sampling = f"q = {rate:.6g}"
        case Passes(length):
            sampling = f"shuffled in passes of {length:,} steps"
        case _:
            sampling = "full batches"
    noise = f"\N{GREEK SMALL LETTER SIGMA} = {report.noise_multiplier:g}"
    return f"{noise}, {sampling}, \N{GREEK SMALL LETTER DELTA} = {delta:g}, {plan.adjacency}"
