"""Recipes by name. To add one: a function that returns it, in a module here, and a line below."""

from importlib import import_module

from quietgrad._names import unknown_name
from quietgrad.recipes.recipe import Recipe

# The module of each recipe; its function has the recipe's name, with underscores.
_MODULES = {
    "digits": "digits",
    "mnist": "mnist",
    "fashion-mnist": "fashion_mnist",
    "fashion-mnist-scattering": "fashion_mnist",
    "cifar10-resnet20": "cifar10",
    "cifar10-resnet20-plain": "cifar10",
    "cifar10-features": "cifar10",
    "cifar10-scattering": "cifar10",
    "imdb": "imdb",
    "imdb-plain": "imdb",
    "sst2": "glue",
    "sst2-lora": "glue",
    "sst2-bias": "glue",
    "qnli": "glue",
    "qqp": "glue",
    "mnli": "glue",
    "e2e": "e2e",
    "adult": "adult",
    "imagenette": "image_folders",
    "celeba": "image_folders",
    "svhn": "image_folders",
    "vit": "image_folders",
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
