"""In which settings a run differs from the recipe it is named after."""

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from quietgrad import recipes
from quietgrad.cli.scores import counted
from quietgrad.recipes import Recipe
from quietgrad.recipes.settings import Settings

# They decide how a figure is computed, not which figure.
_WITHOUT_EFFECT = ("physical_batch_size", "noise")
# In every title; and a paper's figure is that for the very epsilon.
_TOLD_ANYWAY = ("clipping", "epsilon")
_ACCOUNTANT = "accountant"


Changes = dict[str, tuple[Any, Any]]
"""Of settings by name: what it is here, and what the recipe has."""


def changes(recipe: Recipe) -> Changes:
    """Settings that are not the recipe's own for this clipping function."""
    here = asdict(recipe.settings)
    there = asdict(recipes.load(recipe.name).changed(clipping=recipe.settings.clipping).settings)
    return {
        name: (value, there[name])
        for name, value in here.items()
        if value != there[name] and name not in _WITHOUT_EFFECT
    }


def told(found: Changes, *, smoke: bool = False) -> str:
    """What was changed, as a list in words; empty if nothing was."""
    parts = [_part(name, *pair) for name, pair in found.items() if name not in _TOLD_ANYWAY]
    return ", ".join([*(["made data and a small model (--smoke)"] if smoke else []), *parts])


def is_beside_papers(found: Changes, *, smoke: bool) -> bool:
    """Whether figures may be read beside those of papers, each of which has its own accountant."""
    return not smoke and not found.keys() - {*_TOLD_ANYWAY, _ACCOUNTANT}


def titled(name: str, *, smoke: bool) -> str:
    """What a title begins with: figures of made data must not be taken for others."""
    return f"{name} (smoke)" if smoke else name


def course(settings: Settings, swept: Collection[str] = ()) -> str:
    """What a title says about a training, but for settings that are swept over."""
    parts = [] if "epsilon" in swept else [f"epsilon {settings.epsilon:g}"]
    parts.append(counted(settings.epochs, "epoch"))
    if settings.limit is not None:
        parts.append(f"the first {settings.limit:,} samples")
    return ", ".join(parts)


def _part(name: str, here: Any, there: Any) -> str:
    if name == "limit" and here is not None:
        return f"the first {here:,} samples (recipe: all)"
    if name == "epochs":
        return f"{counted(here, 'epoch')} (recipe: {there})"
    return f"{name.replace('_', ' ')} {_value(here)} (recipe: {_value(there)})"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
