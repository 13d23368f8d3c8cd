"""`quietgrad epsilon`: what a run spends."""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad.accounting.accountants import names as accountant_names
from quietgrad.accounting.events import Passes, Poisson, TruncatedPoisson
from quietgrad.cli import spending
from quietgrad.cli.common import computing, require_drawable, write_figure
from quietgrad.cli.options import (
    TrainingPlan,
    adjacency_option,
    json_option,
    noise_option,
    plan_options,
)
from quietgrad.cli.spending import Question, Spent, question, spent
from quietgrad.plots.runs import EpsilonCurve, epsilon_figure, epsilon_over_steps

_DOES_NOT_HOLD = "if sampling had been Poisson: does not hold for shuffled batches"


@dataclass(frozen=True)
class EpsilonReport:
    """Every accountant's answer.

    Attributes:
        plan: the run.
        noise_multiplier: of its every step.
        question: what was asked.
        results: the answers.
        pretended: for shuffled batches, the Poisson-sampled run they are often taken for.
        untrue: the answers for that one, which do not hold for what is done.
    """

    plan: TrainingPlan
    noise_multiplier: float
    question: Question
    results: list[Spent]
    pretended: TrainingPlan | None = None
    untrue: list[Spent] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        known = {self.question.known: self.question.at}
        inputs = {"noise_multiplier": self.noise_multiplier} | self.plan.given.typed() | known
        report = {"inputs": inputs} | self.plan.as_dict() | {"results": self._dict(self.results)}
        if self.pretended is not None:
            report["if_poisson"] = (
                {"holds": False} | self.pretended.as_dict() | {"results": self._dict(self.untrue)}
            )
        return report

    def show(self, console: Console) -> None:
        """The same for people."""
        asked = self.question
        console.print(
            f"{spending.steps(self.plan)} with noise multiplier {self.noise_multiplier:g}"
        )
        for line in spending.setting(self.plan, f"{asked.known} {asked.at:g}"):
            console.print(line)
        console.print(self._table())
        if math.inf in [each.value for each in self.results]:
            console.print("infinity: that accountant can show no finite epsilon at this delta.")

    def _table(self) -> Table:
        shuffled = self.pretended is not None
        table = Table()
        table.add_column("accountant")
        performed = " as performed: shuffled, not amplified" if shuffled else ""
        table.add_column(self.question.asked + performed, justify="right", max_width=21)
        if shuffled:
            table.add_column(_DOES_NOT_HOLD, justify="right", max_width=21)
        table.add_column("what it is")
        for number, each in enumerate(self.results):
            beside = [str(self.untrue[number])] if shuffled else []
            words = spending.what_it_is(each, self.results)
            table.add_row(each.accountant, str(each), *beside, words)
        return table

    def _dict(self, answers: list[Spent]) -> dict[str, Any]:
        return {each.accountant: each.as_dict(self.question) for each in answers}


def require_plottable(file: Path, question: Question) -> None:
    """Complain about what would only fail after the work is done.

    Raises:
        ValueError: such a plot cannot be drawn or written.
        MissingExtraError: matplotlib is not installed.
    """
    if question.asked != "epsilon":
        raise ValueError("--plot draws epsilon over steps: it needs --delta, not --epsilon")
    require_drawable(file)


def write_plot(file: Path, report: EpsilonReport) -> None:
    """Compute the curves, draw them, write the file."""
    with computing("Computing epsilon over steps"):
        curves = {
            _label(result, report): _curve(result, report)
            for result in report.results
            if result.value is not None
        }
        figure = epsilon_figure(curves, title=_title(report))
    write_figure(figure, file)


def _curve(result: Spent, report: EpsilonReport) -> EpsilonCurve:
    plan = report.plan
    return epsilon_over_steps(
        noise_multiplier=report.noise_multiplier,
        sampling=plan.sampling,
        steps=plan.steps,
        delta=report.question.at,
        accountant=result.accountant,
        adjacency=plan.adjacency,
    )


def _label(result: Spent, report: EpsilonReport) -> str:
    bound = result.is_guarantee
    words = spending.what_it_is(result, report.results) if bound else spending.APPROXIMATION
    return f"{result.accountant}: {result}, {words}"


def _title(report: EpsilonReport) -> str:
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


@click.command(
    epilog="""
    Examples:

    \b
      quietgrad epsilon --noise-multiplier 1.1 --delta 1e-5 \\
          --sample-rate 0.01 --steps 5000
      quietgrad epsilon --noise-multiplier 1.1 --delta 1e-5 \\
          --batch-size 256 --dataset-size 60000 --epochs 15 --sampling shuffled
    """
)
@noise_option(required=True)
@plan_options
@click.option("--delta", type=float, metavar="DELTA", help="Print epsilon for this delta.")
@click.option("--epsilon", type=float, metavar="EPSILON", help="Print delta for this epsilon.")
@adjacency_option
@click.option(
    "--accountant",
    "accountants",
    type=click.Choice(accountant_names()),
    multiple=True,
    help="Whose figure to print; may be repeated. Default: all.",
)
@json_option
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw epsilon over steps, to a .png, .svg or .pdf file.",
)
def epsilon(
    plan: TrainingPlan,
    noise_multiplier: float,
    delta: float | None,
    epsilon: float | None,
    accountants: tuple[str, ...],
    as_json: bool,
    plot: Path | None,
) -> None:
    """What a run of private training spends: epsilon, or delta.

    Epsilon at --delta, or delta at --epsilon, by every accountant. Printed bounds are rounded up;
    --json has all digits.
    """
    with computing("Composing the steps"):
        asked = question(delta=delta, epsilon=epsilon)
        if plot is not None:
            require_plottable(plot, asked)
        report = _report(plan, noise_multiplier, asked, accountants or accountant_names())
    if plot is not None:
        write_plot(plot, report)
        click.echo(f"Plot written to {plot}", err=True)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        report.show(Console())


def _report(
    plan: TrainingPlan, sigma: float, asked: Question, names: tuple[str, ...]
) -> EpsilonReport:
    results = spent(plan, sigma, asked, dict.fromkeys(names))
    pretended = plan.if_poisson()
    if pretended is None:
        return EpsilonReport(plan, sigma, asked, results)
    # Whatever an accountant is, for another run than the one performed it bounds nothing.
    untrue = [
        replace(each, is_guarantee=False)
        for each in spent(pretended, sigma, asked, [each.accountant for each in results])
    ]
    return EpsilonReport(plan, sigma, asked, results, pretended, untrue)
