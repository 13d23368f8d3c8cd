"""`quietgrad tune-cost`: what a search for hyperparameters spends."""

import math
from typing import get_args

import click
from rich.console import Console
from rich.table import Table

from quietgrad._format import json_number, printed
from quietgrad.accounting.calibration import epsilon as epsilon_of
from quietgrad.accounting.events import FullBatch, Poisson
from quietgrad.accounting.tuning import RunsDistribution, tuned
from quietgrad.cli.common import computing, print_result, require_one
from quietgrad.cli.options import (
    TrainingPlan,
    delta_option,
    epsilon_option,
    json_option,
    noise_option,
    plan_options,
)

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
    help="Distribution of the number of runs; may be repeated. Default: all.",
)
@json_option
def tune_cost(
    plan: TrainingPlan,
    noise_multiplier: float | None,
    epsilon: float | None,
    delta: float,
    runs: float,
    distributions: tuple[RunsDistribution, ...],
    as_json: bool,
) -> None:
    """Compute the epsilon of a search that releases only its best run.

    Give --noise-multiplier of the runs to get the epsilon of the search, or --epsilon of the search
    to get the noise multiplier that its runs need. Sampling and steps are those of one run. The
    cost is known for Poisson sampling and for full batches.
    """
    with computing("Composing the search"):
        if not isinstance(plan.sampling, Poisson | FullBatch):
            option = "--largest-batch" if plan.given.largest_batch else "--sampling shuffled"
            raise ValueError(
                f"{option}: the cost of a search is known only for Poisson sampling and full"
                " batches"
            )
        require_one(noise_multiplier=noise_multiplier, epsilon=epsilon)
        searches = {
            distribution: tuned(
                mean_runs=runs,
                delta=delta,
                distribution=distribution,
                noise_multiplier=noise_multiplier,
                epsilon=epsilon,
                steps=plan.steps,
                sampling=plan.sampling,
            )
            for distribution in dict.fromkeys(distributions or _DISTRIBUTIONS)
        }
        naive_runs, noises, naive = math.ceil(runs), dict[str, float](), dict[str, float]()
        for name, search in searches.items():
            assert search.noise_multiplier is not None  # given, or found
            noises[name] = search.noise_multiplier
            # For comparison: as many runs, all of them released.
            naive[name] = epsilon_of(
                noise_multiplier=search.noise_multiplier,
                sampling=plan.sampling,
                steps=plan.steps * naive_runs,
                delta=delta,
                accountant="rdp",
            )
    known = {"noise_multiplier": noise_multiplier} if epsilon is None else {"epsilon": epsilon}
    found = {
        "inputs": known | {"delta": delta, "runs": runs} | plan.given.typed(),
        **plan.as_dict(),
        "accountant": "rdp",
        "searches": {
            name: {
                "noise_multiplier": noises[name],
                "single_run_epsilon": json_number(search.single_run_epsilon),
                "epsilon": json_number(search.epsilon),
                "delta": search.delta,
                "naive_runs": naive_runs,
                "naive_epsilon": json_number(naive[name]),
                "is_guarantee": True,
            }
            for name, search in searches.items()
        },
    }

    def show(console: Console) -> None:
        if epsilon is None:
            goal = f"with noise multiplier {noise_multiplier:g}"
        else:
            goal = f"the search within epsilon {epsilon:g}"
        console.print(f"{runs:g} runs on average, each of {plan.length()}, {goal}")
        for line in plan.conditions(f"delta {delta:g}"):
            console.print(line)
        table = Table("distribution of runs")
        columns = ("epsilon of one run", "epsilon of the search")
        for column in columns if epsilon is None else ("noise multiplier", *columns):
            table.add_column(column, justify="right")
        for name, search in searches.items():
            noise = [] if epsilon is None else [printed(noises[name], decimals=4)]
            spent = printed(search.single_run_epsilon), printed(search.epsilon)
            table.add_row(name, *noise, *spent)
        console.print(table)
        console.print(
            "Upper bounds (Renyi). The number of runs must be drawn at random, once, as"
            " quietgrad.accounting.TunedSearch.draw_runs does."
        )
        costs = " / ".join(dict.fromkeys(map(printed, naive.values())))
        console.print(f"Naive composition of {naive_runs} such runs would cost {costs}.")

    print_result(found, show, as_json=as_json)
