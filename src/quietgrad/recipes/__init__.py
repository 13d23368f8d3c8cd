"""Experiments that can be run by name. Recipes depend on the core, never the reverse."""

from quietgrad.recipes.recipe import MissingExtraError, Recipe, Split
from quietgrad.recipes.registry import load, names

__all__ = ["MissingExtraError", "Recipe", "Split", "load", "names"]
