"""Options of commands that take a recipe, named as the recipe's fields."""

from collections.abc import Callable

import click

from quietgrad import accounting, clipping, grouping, noise, sampling
from quietgrad.cli.failures import Refusal
from quietgrad.cli.options import one_of
from quietgrad.grouping.registry import AUTO


def recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options named as the recipe's fields; one left out keeps the recipe's value."""
    options = [
        click.option("--epsilon", type=float, help="Privacy budget to stay within."),
        click.option("--delta", type=float, help="Probability with which the bound may fail."),
        click.option("--epochs", type=int, help="Passes over the data."),
        click.option("--batch-size", type=int, help="Expected batch size."),
        click.option("--physical-batch-size", type=int, help="Most samples in memory at once."),
        click.option("--lr", "learning_rate", type=float, help="Learning rate."),
        click.option("--clipping", help=one_of("Clipping function", clipping.names())),
        click.option(
            "--grouping",
            callback=_not_auto,
            help=one_of("Grouping of parameters", grouping.names()),
        ),
        click.option("--sampling", help=one_of("How batches are drawn", sampling.names())),
        click.option(
            "--adjacency", help=one_of("Which data sets must look alike", accounting.ADJACENCIES)
        ),
        click.option(
            "--accountant",
            help=one_of("What epsilon is computed with", accounting.accountant_names()),
        ),
        click.option("--noise", help=one_of("Where the noise comes from", noise.names())),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _not_auto(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what needs samples of public shape: a recipe has none."""
    if value is not None and value.lower() == AUTO:
        raise Refusal(
            f"--grouping {value}: groups are planned for samples of public shape, and a recipe has"
            f" none. Choose one of {', '.join(grouping.names())}, or uniform:4 for four groups; in"
            " a program of your own, pass grouping='auto' and example=(batch, loss_fn) to"
            " PrivacyEngine"
        )
    return value
