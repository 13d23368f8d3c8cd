"""`quietgrad tune-cost`: what a search for hyperparameters spends."""

import json
import math
from dataclasses import dataclass
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from quietgrad import accounting
from quietgrad._format import json_number, printed
from quietgrad.accounting.tuning import RunsDistribution, TunedSearch
from quietgrad.cli import spending
from quietgrad.cli.common import computing
from quietgrad.cli.options import (
    TrainingPlan,
    delta_option,
    epsilon_option,
    json_option,
    noise_option,
    plan_options,
)


@dataclass(frozen=True)
class Search:
    """A search, and what as many runs cost if all of them are released.

    Attributes:
        tuned: the search.
        noise_multiplier: of its every run.
        naive_runs: its mean number of runs, rounded up.
        naive_epsilon: what so many runs cost together, by the same accountant.
    """

    tuned: TunedSearch
    noise_multiplier: float
    naive_runs: int
    naive_epsilon: float

    @classmethod
    def of(cls, plan: TrainingPlan, search: TunedSearch) -> "Search":
        """Add what the search is compared with."""
        assert search.noise_multiplier is not None  # given, or found
        naive_runs = math.ceil(search.mean_runs)
        naive = accounting.epsilon(
            noise_multiplier=search.noise_multiplier,
            sampling=plan.sampling,
            steps=plan.steps * naive_runs,
            delta=search.delta,
            accountant="rdp",
        )
        return cls(search, search.noise_multiplier, naive_runs, naive)

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "single_run_epsilon": json_number(self.tuned.single_run_epsilon),
            "epsilon": json_number(self.tuned.epsilon),
            "delta": self.tuned.delta,
            "naive_runs": self.naive_runs,
            "naive_epsilon": json_number(self.naive_epsilon),
            "is_guarantee": True,
        }


@dataclass(frozen=True)
class TuneCostReport:
    """Searches that differ only in how the number of runs is drawn.

    Attributes:
        plan: one run.
        target: what the search was to stay within, if the noise was asked for.
        searches: at least one.
    """

    plan: TrainingPlan
    target: float | None
    searches: list[Search]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        first = self.searches[0]
        known = (
            {"noise_multiplier": first.noise_multiplier}
            if self.target is None
            else {"epsilon": self.target}
        )
        typed = known | {"delta": first.tuned.delta, "runs": first.tuned.mean_runs}
        return (
            {"inputs": typed | self.plan.given.typed()}
            | self.plan.as_dict()
            | {"accountant": "rdp"}
            | {"searches": {each.tuned.distribution: each.as_dict() for each in self.searches}}
        )

    def show(self, console: Console) -> None:
        """The same for people."""
        first = self.searches[0]
        console.print(
            f"{first.tuned.mean_runs:g} runs on average, each of {spending.steps(self.plan)},"
            f" {self._known()}"
        )
        for line in spending.setting(self.plan, f"delta {first.tuned.delta:g}"):
            console.print(line)
        console.print(self._table())
        console.print(
            "Upper bounds (Renyi). The number of runs must be drawn at random, once, as"
            " quietgrad.accounting.TunedSearch.draw_runs does."
        )
        costs = dict.fromkeys(printed(each.naive_epsilon) for each in self.searches)
        console.print(
            f"Naive composition of {first.naive_runs} such runs would cost {' / '.join(costs)}."
        )

    def _known(self) -> str:
        if self.target is None:
            return f"with noise multiplier {self.searches[0].noise_multiplier:g}"
        return f"the search within epsilon {self.target:g}"

    def _table(self) -> Table:
        table = Table()
        table.add_column("runs drawn from")
        if self.target is not None:
            table.add_column("noise multiplier", justify="right")
        table.add_column("epsilon of one run", justify="right")
        table.add_column("of the whole search", justify="right")
        for each in self.searches:
            noise = [] if self.target is None else [printed(each.noise_multiplier, decimals=4)]
            one, whole = each.tuned.single_run_epsilon, each.tuned.epsilon
            table.add_row(each.tuned.distribution, *noise, printed(one), printed(whole))
        return table


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
    plan: TrainingPlan,
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
        report = TuneCostReport(plan, epsilon, [Search.of(plan, each) for each in searches])
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
    else:
        report.show(Console())


def _require_known(plan: TrainingPlan) -> None:
    if not isinstance(plan.sampling, accounting.Poisson | accounting.FullBatch):
        option = "--largest-batch" if plan.given.largest_batch else "--sampling shuffled"
        raise ValueError(
            f"{option}: the cost of a search is known only for Poisson sampling and full batches"
        )


def _require_one(noise_multiplier: float | None, epsilon: float | None) -> None:
    if (noise_multiplier is None) == (epsilon is None):
        found = "neither" if epsilon is None else "both"
        raise ValueError(f"expected either --noise-multiplier or --epsilon, got {found}")
