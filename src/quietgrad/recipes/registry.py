"""Recipes by name. To add one: a module with a function of its own name, and a name here."""

from importlib import import_module

from quietgrad._names import unknown_name
from quietgrad.recipes.recipe import Recipe

_NAMES = ("digits",)


def names() -> tuple[str, ...]:
    """The names `load` understands."""
    return _NAMES


def load(name: str) -> Recipe:
    """The recipe of this name; ValueError, with the nearest names, if there is none."""
    if name not in _NAMES:
        raise unknown_name("recipe", name, _NAMES)
    module = import_module(f"quietgrad.recipes.{name}")
    recipe = getattr(module, name)()
    assert isinstance(recipe, Recipe)
    return recipe
