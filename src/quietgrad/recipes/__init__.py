"""Experiments that can be run by name. Recipes depend on the core, never the reverse."""

from importlib import import_module

from quietgrad._checks import unknown_name
from quietgrad.recipes.recipe import Places, Recipe, Reference, Settings, Smoke, Split

# The module of each recipe; its function has the recipe's name, with underscores.
_MODULES = {
    "digits": "images",
    "mnist": "images",
    "fashion-mnist": "images",
    "fashion-mnist-scattering": "features",
    "cifar10-resnet20": "images",
    "cifar10-resnet20-plain": "images",
    "cifar10-features": "features",
    "cifar10-scattering": "features",
    "imdb": "text",
    "imdb-plain": "text",
    "sst2": "text",
    "sst2-lora": "text",
    "sst2-bias": "text",
    "qnli": "text",
    "qqp": "text",
    "mnli": "text",
    "e2e": "generation",
    "adult": "adult",
    "movielens": "movielens",
    "movielens-records": "movielens",
    "imagenette": "images",
    "celeba": "images",
    "svhn": "images",
    "vit": "images",
}


def names() -> tuple[str, ...]:
    """The names `load` understands."""
    return tuple(_MODULES)


def load(name: str) -> Recipe:
    """The recipe of this name; ValueError, with the nearest names, if there is none."""
    if name not in _MODULES:
        raise unknown_name("recipe", name, names())
    module = import_module(f"quietgrad.recipes.{_MODULES[name]}")
    recipe = getattr(module, name.replace("-", "_"))()
    assert isinstance(recipe, Recipe)
    assert recipe.name == name
    return recipe


__all__ = ["Places", "Recipe", "Reference", "Settings", "Smoke", "Split", "load", "names"]
