"""`quietgrad epsilon`: what a run spends."""

import json
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from quietgrad.accounting import accountant_names
from quietgrad.cli.computing import computing
from quietgrad.cli.epsilon_plot import require_plottable, write_plot
from quietgrad.cli.epsilon_report import Report
from quietgrad.cli.options import adjacency_option, json_option, noise_option, plan_options
from quietgrad.cli.plan import Plan
from quietgrad.cli.spent import Question, question, spent


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
    plan: Plan,
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


def _report(plan: Plan, sigma: float, asked: Question, names: tuple[str, ...]) -> Report:
    results = spent(plan, sigma, asked, dict.fromkeys(names))
    pretended = plan.if_poisson()
    if pretended is None:
        return Report(plan, sigma, asked, results)
    # Whatever an accountant is, for another run than the one performed it bounds nothing.
    untrue = [
        replace(each, is_guarantee=False)
        for each in spent(pretended, sigma, asked, [each.accountant for each in results])
    ]
    return Report(plan, sigma, asked, results, pretended, untrue)
