"""What a `train` command asks for: a new run, or one that goes on."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from quietgrad import recipes
from quietgrad._version import __version__
from quietgrad.recipes import Recipe
from quietgrad.runs import RunFolder, RunFolderError

# What a run needs to go on.
_CONFIG: dict[str, Any] = {
    "recipe": str,
    "changes": dict,
    "seed": int | None,
    "initial_seed": int,
}


@dataclass(frozen=True)
class Request:
    """Everything about a run that is known before it starts.

    Attributes:
        recipe: with all changes made to it.
        seed: fixes noise and sampling, for tests.
        initial_seed: fixes the initial weights, which are public.
        folder: where the run is kept, if it is kept.
        state: the checkpoint to go on from, if there is one.
        notes: what the user should know.
        config: what a new run keeps in its folder, once it is known that it can begin.
    """

    recipe: Recipe
    seed: int | None
    initial_seed: int
    folder: RunFolder | None = None
    state: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None


def prepare(
    name: str, given: Mapping[str, Any], *, seed: int | None, out: Path | None, resume: bool
) -> Request:
    """Read the folder; nothing is made yet.

    Args:
        name: of the recipe.
        given: its fields that were set on the command line.
        seed: as given.
        out: the folder, if one was given.
        resume: whether a run in it may be continued.

    Raises:
        ValueError: what is asked for contradicts itself, or the run in the folder.
    """
    recipe = replace(recipes.load(name), **given)
    if out is None:
        if resume:
            raise ValueError("--resume needs --out: the folder of the run to go on with")
        return Request(recipe, seed, _initial_seed(seed))
    folder = RunFolder(out)
    if folder.has_run and not resume:
        raise ValueError(
            f"{out} holds a run already: add --resume to go on with it, or choose another folder"
        )
    if folder.has_run:
        return _resumed(name, given, seed, folder)
    folder.require_free()
    initial_seed = _initial_seed(seed)
    config = {
        "quietgrad": __version__,
        "recipe": name,
        "changes": dict(given),
        "settings": _settings(recipe),
        "seed": seed,
        "initial_seed": initial_seed,
    }
    notes = (f"Nothing to resume in {out}: a new run begins.",) if resume else ()
    return Request(recipe, seed, initial_seed, folder, notes=notes, config=config)


def _resumed(name: str, given: Mapping[str, Any], seed: int | None, folder: RunFolder) -> Request:
    config = _checked(folder.config, folder)
    try:
        recipe = replace(recipes.load(config["recipe"]), **config["changes"])
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"the config.json in {folder.path} asks for what this version does not know ({error}):"
            " restore a copy of it, or choose another folder"
        ) from error
    asked = {"recipe": name, **given} | ({} if seed is None else {"seed": seed})
    begun = {"recipe": config["recipe"], "seed": config["seed"], **_settings(recipe)}
    for option, value in asked.items():
        if begun.get(option) != value:
            raise ValueError(
                f"the run in {folder.path} was begun with {option}={begun.get(option)!r}, not"
                f" {value!r}: a run is resumed as it was begun. Leave the option out, or choose"
                " another folder"
            )
    state = folder.load()
    done = 0 if state is None else state.get("steps_taken")
    return Request(
        recipe,
        config["seed"],
        config["initial_seed"],
        folder,
        state,
        (f"Resuming the run in {folder.path} after {done} steps.",),
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


def _settings(recipe: Recipe) -> dict[str, Any]:
    """Every constant of the recipe, as plain data."""
    values = ((field.name, getattr(recipe, field.name)) for field in fields(recipe))
    return {name: value for name, value in values if not callable(value) and name != "name"}


def _initial_seed(seed: int | None) -> int:
    return secrets.randbits(63) if seed is None else seed
