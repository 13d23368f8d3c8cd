"""Options of commands that take a recipe, named as the recipe's fields."""

from collections.abc import Callable

import click

from quietgrad import accounting, clipping, grouping, noise, sampling
from quietgrad.cli.options import one_of


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
        click.option("--grouping", help=one_of("Grouping of parameters", grouping.names())),
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
