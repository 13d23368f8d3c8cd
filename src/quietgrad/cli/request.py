"""What a `train` command asks for: a new run, or one that goes on."""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from quietgrad import recipes
from quietgrad._version import __version__
from quietgrad.recipes import Places, Recipe
from quietgrad.runs import RunFolder, RunFolderError
from quietgrad.runs.clock import now
from quietgrad.runs.ledgers import require_ledger_of

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
class Asked:
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
    def from_config(cls, config: Mapping[str, Any]) -> "Asked":
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


def prepare(asked: Asked, *, out: Path | None, resume: bool) -> Request:
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


def _resumed(asked: Asked, folder: RunFolder) -> Request:
    config = _checked(folder.config, folder)
    begun = Asked.from_config(config)
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


def _require_same(asked: Asked, begun: Asked, recipe: Recipe, folder: RunFolder) -> None:
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
