"""A recipe with several clipping functions, each of which must be able to train."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from quietgrad import clipping as clippings
from quietgrad.cli.request import Asked
from quietgrad.recipes import Places, Recipe, Split
from quietgrad.recipes.training import attach


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
        own = Asked(recipe, given, places, smoke, None).resolved()
        return {own.settings.clipping: own}
    for name in names:
        clippings.resolve(name)
    return {
        name: Asked(recipe, {**given, "clipping": name}, places, smoke, None).resolved()
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
