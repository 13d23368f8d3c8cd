"""`quietgrad tune-cost`: what a search for hyperparameters spends."""

import json
from typing import get_args

import click
from rich.console import Console

from quietgrad import accounting
from quietgrad.accounting.tuning import RunsDistribution
from quietgrad.cli.computing import computing
from quietgrad.cli.options import (
    delta_option,
    epsilon_option,
    json_option,
    noise_option,
    plan_options,
)
from quietgrad.cli.plan import Plan
from quietgrad.cli.tune_cost_report import Report, Search

_DISTRIBUTIONS: tuple[RunsDistribution, ...] = get_args(RunsDistribution)


@click.command()
@noise_option()
@epsilon_option()
@delta_option
@plan_options
@click.option(
    "--runs",
    type=float,
    default=10,
    show_default=True,
    metavar="MEAN",
    help="Expected number of runs, at least 1.",
)
@click.option(
    "--distribution",
    "distributions",
    type=click.Choice(_DISTRIBUTIONS),
    multiple=True,
    help="How the number of runs is drawn; may be repeated. Default: all.",
)
@json_option
def tune_cost(
    plan: Plan,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
    runs: float,
    distributions: tuple[RunsDistribution, ...],
    as_json: bool,
) -> None:
    """What a random search costs if only its best run is released.

    Give --noise-multiplier of the runs, for the epsilon of the search, or --epsilon of the search,
    for the noise multiplier its runs need. Sampling and steps are those of one run. The cost is
    known for Poisson sampling and for full batches.
    """
    with computing("Composing the search"):
        _require_known(plan)
        _require_one(noise_multiplier, epsilon)
        searches = [
            accounting.tuned(
                mean_runs=runs,
                delta=delta,
                distribution=distribution,
                noise_multiplier=noise_multiplier,
                epsilon=epsilon,
                steps=plan.steps,
                sampling=plan.sampling,
            )
            for distribution in dict.fromkeys(distributions or _DISTRIBUTIONS)
        ]
        report = Report(plan, epsilon, [Search.of(plan, each) for each in searches])
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        report.show(Console())


def _require_known(plan: Plan) -> None:
    if not isinstance(plan.sampling, accounting.Poisson | accounting.FullBatch):
        option = "--largest-batch" if plan.given.largest_batch else "--sampling shuffled"
        raise ValueError(
            f"{option}: the cost of a search is known only for Poisson sampling and full batches"
        )


def _require_one(noise_multiplier: float | None, epsilon: float | None) -> None:
    if (noise_multiplier is None) == (epsilon is None):
        found = "neither" if epsilon is None else "both"
        raise ValueError(f"expected either --noise-multiplier or --epsilon, got {found}")
