"""Options of commands that take a recipe, and the recipe that they ask for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from quietgrad.accounting.accountants import names as accountant_names
from quietgrad.accounting.events import ADJACENCIES
from quietgrad.cli.common import Refusal
from quietgrad.cli.options import Command, add_options, one_of
from quietgrad.clipping import names as clipping_names
from quietgrad.errors import LedgerError, QuietgradError
from quietgrad.grouping.styles import AUTO
from quietgrad.grouping.styles import names as grouping_names
from quietgrad.noise import names as noise_names
from quietgrad.recipes import installed, load
from quietgrad.recipes import names as recipe_names
from quietgrad.recipes.own import TargetError, canonical, errors_of_target, is_target
from quietgrad.recipes.recipe import OPTIMIZERS, Places, Recipe, Settings
from quietgrad.recipes.training import require_device
from quietgrad.runs.schema import RunFolderError
from quietgrad.sampling.samplers import names as sampling_names


@dataclass(frozen=True)
class RequestedOptions:
    """What was said on the command line.

    Attributes:
        recipe: its name, or `module:function` with the whole path of a file.
        changes: settings that were given.
        places: folders that were given.
        smoke: whether a small stand-in is to be run.
        seed: fixes noise and sampling, for tests.
        device: where the model is trained.
    """

    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    places: Places = field(default_factory=Places)
    smoke: bool = False
    seed: int | None = None
    device: str = "cpu"

    def resolved(self) -> Recipe:
        """The recipe with all changes made to it; ValueError if there is no such recipe."""
        recipe = load(self.recipe)
        return (recipe.small() if self.smoke else recipe).changed(**self.changes)


@contextmanager
def errors_of_recipe(recipe: Recipe) -> Iterator[None]:
    """Refuse with one line what the file of a recipe of the user's own raises."""
    if recipe.target is None:
        yield
        return
    try:
        with errors_of_target(recipe.target):
            yield
    except (LedgerError, RunFolderError):
        raise  # whoever trains says how to go on
    except (TargetError, QuietgradError) as error:
        raise Refusal(str(error)) from error


def recipe_options(command: Command) -> Command:
    """RECIPE and its options; the command gets them as one argument, a `RequestedOptions`."""

    @wraps(command)
    def with_request(
        recipe: str,
        data_dir: Path | None,
        model_dir: Path | None,
        device: str,
        smoke: bool,
        **options: Any,
    ) -> None:
        names = [each.name for each in fields(Settings) if each.name in options]
        given = {name: options.pop(name) for name in names}
        changes = {name: value for name, value in given.items() if value is not None}
        places = Places(data_dir, model_dir)
        named = canonical(recipe) if is_target(recipe) else recipe
        asked = RequestedOptions(named, changes, places, smoke, device=device)
        command(asked=asked, **options)

    return add_options(with_request, [_RECIPE, *_SETTINGS, *_PLACES])


class Folder(click.Path):
    """A path that is not empty: an unset variable in a script is not the current folder.

    Args:
        options: as `click.Path` takes them.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(file_okay=False, path_type=Path, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As `click.Path` does."""
        if value == "":
            self.fail("an empty path: expected a folder ('.' is the current one)", param, ctx)
        return super().convert(value, param, ctx)


def _complete(context: click.Context, argument: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in (*recipe_names(), *installed()) if name.startswith(incomplete)]


def _not_auto(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Refuse what needs samples of public shape: a recipe has none."""
    if value is not None and value.lower() == AUTO:
        raise Refusal(
            f"--grouping {value}: groups are planned for samples of public shape, and a recipe has"
            f" none. Choose one of {', '.join(grouping_names())}, or uniform:4 for four groups; in"
            " a program of your own, pass grouping='auto' and example=(batch, loss_fn) to"
            " PrivacyEngine"
        )
    return value


def _available(context: click.Context, option: click.Parameter, value: str) -> str:
    """Refuse a device that nothing can be trained on."""
    try:
        return require_device(value)
    except ValueError as error:
        raise Refusal(str(error)) from None


_RECIPE = click.argument("recipe", metavar="RECIPE", shell_complete=_complete)
# Named as the recipe's fields; one that is left out keeps the recipe's value.
_SETTINGS = (
    click.option("--epsilon", type=float, help="Target epsilon of the training."),
    click.option("--delta", type=float, help="Probability with which the epsilon bound may fail."),
    click.option("--epochs", type=int, help="Number of passes over the data."),
    click.option("--limit", type=int, help="Train on this number of samples only, the first ones."),
    click.option("--batch-size", type=int, help="Expected batch size."),
    click.option(
        "--physical-batch-size", type=int, help="Largest number of samples in memory at once."
    ),
    click.option(
        "--records-per-unit", type=int, help="Most records of a unit in a step, if it has several."
    ),
    click.option("--lr", "learning_rate", type=float, help="Learning rate."),
    click.option("--optimizer", help=one_of("Optimizer", OPTIMIZERS)),
    click.option("--momentum", type=float, help="Momentum of SGD, applied after the noise."),
    click.option("--weight-decay", type=float, help="Weight decay of the optimizer."),
    click.option("--clipping", help=one_of("Clipping function", clipping_names())),
    click.option("--radius", type=float, help="Clipping radius R."),
    click.option("--stability", type=float, help="Stability constant: gamma of auto-s, r of psac."),
    click.option(
        "--inner-steps", type=int, help="Past weights in the inner momentum (K0); sgd only."
    ),
    click.option(
        "--inner-momentum", type=float, help="Coefficient of the inner momentum (gamma0)."
    ),
    click.option("--views", type=int, help="Random views of each image, clipped as one sample."),
    click.option(
        "--grouping", callback=_not_auto, help=one_of("Grouping of parameters", grouping_names())
    ),
    click.option("--sampling", help=one_of("How batches are drawn", sampling_names())),
    click.option("--adjacency", help=one_of("Neighbouring data sets", ADJACENCIES)),
    click.option(
        "--accountant", help=one_of("Accountant that computes epsilon", accountant_names())
    ),
    click.option("--noise", help=one_of("Source of the noise", noise_names())),
)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_PLACES = (
    click.option("--data-dir", type=_FOLDER, help="Folder with the files of the data set."),
    click.option("--model-dir", type=_FOLDER, help="Folder with a pretrained model."),
    click.option(
        "--device",
        default="cpu",
        show_default=True,
        callback=_available,
        help="Device to train on, such as cuda or cuda:1. Data is loaded on the CPU.",
    ),
    click.option(
        "--smoke", is_flag=True, help="Use synthetic data and a small model, to try it in seconds."
    ),
)
