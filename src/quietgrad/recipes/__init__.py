"""Experiments that can be run by name. Recipes depend on the core, never the reverse."""

from quietgrad.recipes.recipe import Places, Recipe, Reference, Smoke, Split
from quietgrad.recipes.registry import load, names
from quietgrad.recipes.settings import Settings

__all__ = ["Places", "Recipe", "Reference", "Settings", "Smoke", "Split", "load", "names"]
