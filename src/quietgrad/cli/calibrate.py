"""`quietgrad calibrate`: the noise for an epsilon."""

import click
from rich.console import Console
from rich.table import Table

from quietgrad._format import printed
from quietgrad.accounting.accountants import DEFAULT_ACCOUNTANT, names, resolve
from quietgrad.accounting.calibration import calibrate as calibrate_noise
from quietgrad.cli.common import computing, print_result
from quietgrad.cli.epsilon import Question, answers_as_dict, spent
from quietgrad.cli.options import (
    TrainingPlan,
    adjacency_option,
    delta_option,
    epsilon_option,
    json_option,
    plan_options,
)


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
    help="Accountant whose epsilon must meet the target; gdp is an approximation, not a guarantee.",
)
@json_option
def calibrate(
    plan: TrainingPlan, epsilon: float, delta: float, accountant: str, as_json: bool
) -> None:
    """Compute the noise multiplier that keeps a run within a target epsilon.

    Prints the smallest noise multiplier with which the run spends at most --epsilon at --delta,
    and what it spends by each accountant. Printed numbers are rounded up; --json has all digits.
    """
    with computing("Searching for the noise multiplier"):
        question = Question.of(delta=delta)
        noise_multiplier = calibrate_noise(
            epsilon=epsilon,
            delta=delta,
            steps=plan.steps,
            sampling=plan.sampling,
            accountant=accountant,
            adjacency=plan.adjacency,
        )
        shown = dict.fromkeys([accountant, *names(guarantees_only=True)])
        results = spent(plan, noise_multiplier, question, shown)
    is_guarantee = resolve(accountant).is_guarantee
    inputs = {"epsilon": epsilon, "delta": question.at, "accountant": accountant}
    found = {
        "inputs": inputs | plan.given.typed(),
        **plan.as_dict(),
        "noise_multiplier": noise_multiplier,
        "is_guarantee": is_guarantee,
        "results": answers_as_dict(results, question),
    }

    def show(console: Console) -> None:
        console.print(f"{plan.length()} within epsilon {epsilon:g}")
        for line in plan.conditions(f"delta {question.at:g}"):
            console.print(line)
        noise = printed(noise_multiplier, decimals=4)
        console.print(f"[bold]noise multiplier {noise}[/bold] (by {accountant})")
        table = Table("accountant")
        table.add_column("epsilon", justify="right")
        table.add_column("meaning")
        for each in results:
            table.add_row(each.accountant, str(each), each.meaning(results))
        console.print(table)
        if not is_guarantee:
            bound = next(each for each in results if each.accountant == DEFAULT_ACCOUNTANT)
            assert bound.value is not None
            over = "more than" if bound.value > epsilon else "within"
            console.print(
                f"{accountant} is an approximation, not a guarantee. The bound by"
                f" {bound.accountant} holds: this noise spends {bound}, {over} the target of"
                f" {epsilon:g}."
            )

    print_result(found, show, as_json=as_json)
