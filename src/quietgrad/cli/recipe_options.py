"""Options of commands that take a recipe, named as the recipe's fields."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from quietgrad import accounting, clipping, grouping, noise, recipes, sampling
from quietgrad.cli.failures import Refusal
from quietgrad.cli.options import one_of
from quietgrad.grouping.registry import AUTO
from quietgrad.recipes.training import OPTIMIZERS

Option = Callable[[Callable[..., None]], Callable[..., None]]


def recipe_argument(command: Callable[..., None]) -> Callable[..., None]:
    """The recipe's name, which shells can complete."""
    return click.argument("recipe", metavar="RECIPE", shell_complete=_begun)(command)


def _begun(context: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in recipes.names() if name.startswith(incomplete)]


def recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options named as the recipe's fields; one left out keeps the recipe's value."""
    options = [
        click.option("--epsilon", type=float, help="Privacy budget to stay within."),
        click.option("--delta", type=float, help="Probability with which the bound may fail."),
        click.option("--epochs", type=int, help="Passes over the data."),
        click.option("--limit", type=int, help="Train on the first so many samples only."),
        click.option("--batch-size", type=int, help="Expected batch size."),
        click.option("--physical-batch-size", type=int, help="Most samples in memory at once."),
        click.option("--lr", "learning_rate", type=float, help="Learning rate."),
        click.option("--optimizer", help=one_of("Optimizer", OPTIMIZERS)),
        click.option("--momentum", type=float, help="Of SGD, after the noise."),
        click.option("--weight-decay", type=float, help="Of the optimizer."),
        click.option("--clipping", help=one_of("Clipping function", clipping.names())),
        click.option("--radius", type=float, help="R, to which gradients are clipped."),
        click.option("--stability", type=float, help="gamma of auto-s, r of psac."),
        click.option(
            "--inner-steps", type=int, help="Past weights in the inner momentum (K0); sgd only."
        ),
        click.option("--inner-momentum", type=float, help="Their weight (gamma0)."),
        click.option("--views", type=int, help="Random views of each image, clipped as one."),
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
    return _with(command, options)


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where data and weights are, or that made ones will do."""
    folder = click.Path(exists=True, file_okay=False, path_type=Path)
    options = [
        click.option("--data-dir", type=folder, help="Folder with the data set's usual files."),
        click.option("--model-dir", type=folder, help="Folder with a pretrained model."),
        click.option(
            "--smoke", is_flag=True, help="Made data and a small model: seconds, to try it out."
        ),
    ]
    return _with(command, options)


def _with(command: Callable[..., None], options: Sequence[Option]) -> Callable[..., None]:
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
