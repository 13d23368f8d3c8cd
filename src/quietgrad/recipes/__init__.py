"""Experiments that can be run by name. Recipes depend on the core, never the reverse."""

from importlib import import_module

from quietgrad._checks import unknown_name
from quietgrad.recipes.own import TargetError, installed, is_target, load_own
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
    """The recipe of this name, of an installed package, or of `module:function`.

    A function is in an importable module or in a file, `path/to/file.py:function`.

    Raises:
        ValueError: there is none, and the message has the nearest names; or it cannot be loaded.
    """
    if name not in _MODULES:
        if is_target(name):
            return load_own(name)
        others = installed()
        if name in others:
            recipe = load_own(others[name].value)
            if recipe.name != name:
                raise TargetError(
                    f"the entry point {name!r} leads to a recipe that is called {recipe.name!r}"
                    f" ({others[name].value}): give both the same name"
                )
            return recipe
        more = "; and MODULE:FUNCTION or FILE.py:FUNCTION for one of your own"
        raise unknown_name("recipe", name, (*names(), *others), more)
    module = import_module(f"quietgrad.recipes.{_MODULES[name]}")
    recipe = getattr(module, name.replace("-", "_"))()
    assert isinstance(recipe, Recipe)
    assert recipe.name == name
    return recipe


__all__ = [
    "Places",
    "Recipe",
    "Reference",
    "Settings",
    "Smoke",
    "Split",
    "installed",
    "load",
    "names",
]
