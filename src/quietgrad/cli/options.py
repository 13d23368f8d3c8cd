"""Options that several commands share."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial, wraps
from typing import Any

import click

from quietgrad.accounting import ADJACENCIES
from quietgrad.cli.failures import refusals
from quietgrad.cli.plan import SAMPLERS, Given, plan_from

Command = Callable[..., None]

noise_option = partial(
    click.option,
    "--noise-multiplier",
    type=float,
    metavar="SIGMA",
    help="Standard deviation of the noise over the largest gradient of one sample.",
)
epsilon_option = partial(
    click.option, "--epsilon", type=float, metavar="EPSILON", help="Target to stay within."
)
delta_option = click.option(
    "--delta",
    type=float,
    required=True,
    metavar="DELTA",
    help="Probability with which the bound may fail; below 1 / number of samples.",
)
adjacency_option = click.option(
    "--adjacency",
    type=click.Choice(ADJACENCIES),
    help="Which data sets must look alike. Default: add-remove-one; replace-one if shuffled.",
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='Print one JSON object and nothing else. An infinite number is the string "infinity".',
)


def plan_options(command: Command) -> Command:
    """Options for sampling and steps; the command gets them as one argument, a `Plan`."""

    @wraps(command)
    def with_plan(**options: Any) -> None:
        names = {field.name for field in fields(Given)} & set(options)
        given = Given(**{name: options.pop(name) for name in names})
        with refusals():
            plan = plan_from(given)
        command(plan=plan, **options)

    return _sampling_options(with_plan)


def _sampling_options(command: Command) -> Command:
    options = [
        click.option(
            "--sample-rate",
            type=float,
            metavar="Q",
            help="Probability with which each sample joins a step.",
        ),
        click.option(
            "--batch-size",
            type=int,
            metavar="B",
            help="With --dataset-size, instead of --sample-rate: the rate is B/N.",
        ),
        click.option("--dataset-size", type=int, metavar="N", help="Number of samples."),
        click.option("--steps", type=int, metavar="T", help="Number of optimizer steps."),
        click.option(
            "--epochs",
            type=int,
            metavar="E",
            help="Instead of --steps: E passes of N/B steps.",
        ),
        click.option(
            "--sampling",
            "sampler",
            type=click.Choice(SAMPLERS),
            default="poisson",
            show_default=True,
            help="How batches are drawn.",
        ),
        click.option(
            "--largest-batch",
            type=int,
            metavar="L",
            help="Poisson draws above L are cut down to L; needs --dataset-size.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def one_of(what: str, names: tuple[str, ...]) -> str:
    """Help for an option that takes one of these names."""
    return f"{what}: {', '.join(names)}."
