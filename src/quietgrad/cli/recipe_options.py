"""Options of commands that take a recipe, named as the recipe's fields."""

import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import click
import torch

from quietgrad import accounting, clipping, grouping, noise, recipes, sampling
from quietgrad import clipping as clippings
from quietgrad._version import __version__
from quietgrad.cli.common import Refusal
from quietgrad.cli.options import one_of
from quietgrad.grouping.styles import AUTO
from quietgrad.recipes.recipe import OPTIMIZERS, Places, Recipe, Split
from quietgrad.recipes.training import attach
from quietgrad.runs.folder import RunFolder
from quietgrad.runs.resume import require_ledger_of
from quietgrad.runs.schema import RunFolderError, now

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


# What a run needs to go on.
_CONFIG: dict[str, Any] = {
    "recipe": str,
    "changes": dict,
    "smoke": bool,
    "data_dir": str | None,
    "model_dir": str | None,
    "seed": int | None,
    "initial_seed": int,
}


@dataclass(frozen=True)
class RequestedOptions:
    """What was said on the command line.

    Attributes:
        recipe: its name.
        changes: settings that were given.
        places: folders that were given.
        smoke: whether a small stand-in is to be run.
        seed: fixes noise and sampling, for tests.
    """

    recipe: str
    changes: Mapping[str, Any]
    places: Places
    smoke: bool
    seed: int | None

    def resolved(self) -> Recipe:
        """The recipe with all changes made to it.

        Raises:
            ValueError: there is no such recipe.
        """
        recipe = recipes.load(self.recipe)
        return (recipe.small() if self.smoke else recipe).changed(**self.changes)

    def as_config(self) -> dict[str, Any]:
        """Enough to ask for the same again."""
        return {
            "recipe": self.recipe,
            "changes": dict(self.changes),
            "smoke": self.smoke,
            "data_dir": _absolute(self.places.data),
            "model_dir": _absolute(self.places.model),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "RequestedOptions":
        """What `as_config` wrote down."""
        folders = (config["data_dir"], config["model_dir"])
        places = Places(*(None if folder is None else Path(folder) for folder in folders))
        return cls(config["recipe"], config["changes"], places, config["smoke"], config["seed"])


@dataclass(frozen=True)
class Request:
    """Everything about a run that is known before it starts.

    Attributes:
        recipe: with all changes made to it.
        places: where data and weights are.
        seed: fixes noise and sampling, for tests.
        initial_seed: fixes the initial weights, which are public.
        folder: where the run is kept.
        state: the checkpoint to go on from, if there is one.
        notes: what the user should know.
        config: what a new run keeps in its folder, once it is known that it can begin.
    """

    recipe: Recipe
    places: Places
    seed: int | None
    initial_seed: int
    folder: RunFolder
    state: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


def prepare(asked: RequestedOptions, *, out: Path | None, resume: bool) -> Request:
    """Read the folder; nothing is made yet.

    Args:
        asked: for what.
        out: the folder; None for a new one.
        resume: whether a run in it may be continued.

    Raises:
        ValueError: what is asked for contradicts itself, or the run in the folder.
    """
    if out is None and resume:
        raise ValueError("--resume needs --out: the folder of the run to go on with")
    folder = RunFolder(out or next_free(asked.recipe))
    if folder.has_run and not resume:
        raise ValueError(
            f"{out} holds a run already: add --resume to go on with it, or choose another folder"
        )
    if folder.has_run:
        return _resumed(asked, folder)
    recipe = asked.resolved()
    folder.require_free()
    initial_seed = secrets.randbits(63) if asked.seed is None else asked.seed
    config = {
        "quietgrad": __version__,
        **asked.as_config(),
        "settings": asdict(recipe.settings),
        "initial_seed": initial_seed,
        "begun": now(),
    }
    notes = (f"Nothing to resume in {out}: a new run begins.",) if resume else ()
    return Request(
        recipe, asked.places, asked.seed, initial_seed, folder, notes=notes, config=config
    )


def next_free(name: str) -> Path:
    """A folder for a run that was given none."""
    numbers = (number for number in count(1))
    return next(path for k in numbers if not (path := Path("runs") / f"{name}-{k}").exists())


def _resumed(asked: RequestedOptions, folder: RunFolder) -> Request:
    config = _checked(folder.config, folder)
    begun = RequestedOptions.from_config(config)
    try:
        recipe = begun.resolved()
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"the config.json in {folder.path} asks for what this version does not know ({error}):"
            " restore a copy of it, or choose another folder"
        ) from error
    _require_same(asked, begun, recipe, folder)
    state = folder.load()
    require_ledger_of(folder, state)
    done = 0 if state is None else state.get("steps_taken")
    note = f"Resuming the run in {folder.path} after {done} steps."
    if folder.result is not None:
        note = f"The run in {folder.path} is finished: nothing is left to train."
    return Request(recipe, begun.places, begun.seed, config["initial_seed"], folder, state, (note,))


def _require_same(
    asked: RequestedOptions, begun: RequestedOptions, recipe: Recipe, folder: RunFolder
) -> None:
    """Refuse options that differ from those the run was begun with; left out ones do not."""
    known = {**begun.as_config(), **asdict(recipe.settings)}
    left_out: tuple[object, ...] = (None, False)
    said = {
        name: value
        for name, value in asked.as_config().items()
        if not any(value is nothing for nothing in left_out)
    }
    said |= said.pop("changes")
    different = [
        f"{name}={known.get(name)!r}, not {value!r}"
        for name, value in said.items()
        if known.get(name) != value
    ]
    if different:
        raise ValueError(
            f"the run in {folder.path} was begun with {'; '.join(different)}: a run is resumed as"
            " it was begun. Leave what differs out, or choose another folder"
        )


def _checked(config: dict[str, Any], folder: RunFolder) -> dict[str, Any]:
    for field, kind in _CONFIG.items():
        if field not in config or not isinstance(config[field], kind):
            raise RunFolderError(
                f"the config.json in {folder.path} does not say what {field!r} the run was begun"
                " with: restore a copy of it, or choose another folder. The ledger still says what"
                " was spent"
            )
    return config


def _absolute(folder: Path | None) -> str | None:
    return None if folder is None else str(folder.absolute())


def variants_of(
    recipe: str, names: Sequence[str], given: Mapping[str, Any], places: Places, *, smoke: bool
) -> dict[str, Recipe]:
    """The recipe with each clipping function: what is given wins over what is tuned for it.

    Args:
        recipe: its name.
        names: of clipping functions; none for the recipe's own.
        given: other settings.
        places: folders that were given.
        smoke: whether a small stand-in is to be run.

    Raises:
        ValueError: one of them is not known, or does not go with the settings.
    """
    if not names:
        own = RequestedOptions(recipe, given, places, smoke, None).resolved()
        return {own.settings.clipping: own}
    for name in names:
        clippings.resolve(name)
    return {
        name: RequestedOptions(recipe, {**given, "clipping": name}, places, smoke, None).resolved()
        for name in names
    }


def require_settings(variants: Iterable[Recipe]) -> None:
    """Refuse what the clipping function does not take; other settings were checked when made."""
    for variant in variants:
        _ = variant.settings.engine_options


def require_trainable(variants: Iterable[Recipe], split: Split, places: Places) -> None:
    """Refuse now what would be refused after hours: an engine is attached, and detached."""
    model = None
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the trials themselves will warn
        for variant in variants:
            model = variant.build_model(places) if model is None else model
            attach(variant, split, model, seed=0).detach()
