"""`quietgrad calibrate`: the noise for an epsilon."""

import json
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad import accounting
from quietgrad._format import printed
from quietgrad.accounting.accountants import DEFAULT_ACCOUNTANT, names, resolve
from quietgrad.cli import spending
from quietgrad.cli.common import computing
from quietgrad.cli.options import (
    TrainingPlan,
    adjacency_option,
    delta_option,
    epsilon_option,
    json_option,
    plan_options,
)
from quietgrad.cli.spending import Question, Spent, question, spent


@click.command()
@epsilon_option(required=True)
@delta_option
@plan_options
@adjacency_option
@click.option(
    "--accountant",
    type=click.Choice(names()),
    default=DEFAULT_ACCOUNTANT,
    show_default=True,
    help="Whose epsilon has to meet the target; gdp is an approximation, not a guarantee.",
)
@json_option
def calibrate(
    plan: TrainingPlan, epsilon: float, delta: float, accountant: str, as_json: bool
) -> None:
    """The noise a run needs to stay within an epsilon.

    The smallest noise multiplier at which the run spends no more than --epsilon at --delta, and
    what it spends by each accountant. Printed numbers are rounded up; --json has all digits.
    """
    with computing("Searching for the noise multiplier"):
        asked = question(delta=delta)
        noise_multiplier = accounting.calibrate(
            epsilon=epsilon,
            delta=delta,
            steps=plan.steps,
            sampling=plan.sampling,
            accountant=accountant,
            adjacency=plan.adjacency,
        )
        shown = dict.fromkeys([accountant, *names(guarantees_only=True)])
        results = spent(plan, noise_multiplier, asked, shown)
    report = _Report(plan, epsilon, asked, accountant, noise_multiplier, results)
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        report.show(Console())


@dataclass(frozen=True)
class _Report:
    plan: TrainingPlan
    target: float
    question: Question
    accountant: str
    noise_multiplier: float
    results: list[Spent]

    def as_dict(self) -> dict[str, Any]:
        typed = {"epsilon": self.target, "delta": self.question.at, "accountant": self.accountant}
        return (
            {"inputs": typed | self.plan.given.typed()}
            | self.plan.as_dict()
            | {
                "noise_multiplier": self.noise_multiplier,
                "is_guarantee": resolve(self.accountant).is_guarantee,
                "results": {each.accountant: each.as_dict(self.question) for each in self.results},
            }
        )

    def show(self, console: Console) -> None:
        console.print(f"{spending.steps(self.plan)} within epsilon {self.target:g}")
        for line in spending.setting(self.plan, f"delta {self.question.at:g}"):
            console.print(line)
        noise = printed(self.noise_multiplier, decimals=4)
        console.print(f"[bold]noise multiplier {noise}[/bold] (by {self.accountant})")
        console.print(self._table())
        if not resolve(self.accountant).is_guarantee:
            console.print(self._warning())

    def _table(self) -> Table:
        table = Table()
        table.add_column("accountant")
        table.add_column("epsilon", justify="right")
        table.add_column("what it is")
        for each in self.results:
            words = spending.what_it_is(each, self.results)
            table.add_row(each.accountant, str(each), words)
        return table

    def _warning(self) -> str:
        bound = next(each for each in self.results if each.accountant == DEFAULT_ACCOUNTANT)
        assert bound.value is not None
        over = "more than" if bound.value > self.target else "within"
        return (
            f"{self.accountant} is an approximation, not a guarantee. What holds is the bound by"
            f" {bound.accountant}: this noise spends {bound}, {over} the target of {self.target:g}."
        )
