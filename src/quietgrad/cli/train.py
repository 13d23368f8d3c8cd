"""`quietgrad train RECIPE`: train privately, then the same model ordinarily, and compare."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import torch
from rich.console import Console
from torch import nn

from quietgrad import recipes
from quietgrad.cli.failures import refusals
from quietgrad.cli.live import live
from quietgrad.cli.summary import Comparison
from quietgrad.recipes import Recipe
from quietgrad.recipes.training import attach, train_ordinary, train_private


def _recipe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options named as the recipe's fields; one left out keeps the recipe's value."""
    options = [
        click.option("--epsilon", type=float, help="Privacy budget to stay within."),
        click.option("--delta", type=float, help="Probability with which the bound may fail."),
        click.option("--epochs", type=int, help="Passes over the data."),
        click.option("--batch-size", type=int, help="Expected (Poisson) batch size."),
        click.option("--physical-batch-size", type=int, help="Most samples in memory at once."),
        click.option("--lr", "learning_rate", type=float, help="Learning rate."),
        click.option("--clipping", help="Clipping function, such as auto-s."),
        click.option("--grouping", help="Grouping of parameters, such as all-layer."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=f"Recipes: {', '.join(recipes.names())}.")
@click.argument("recipe", metavar="RECIPE")
@_recipe_options
@click.option("--seed", type=int, help="Reproducible, and therefore NOT private: tests only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def train(recipe: str, seed: int | None, as_json: bool, **overrides: Any) -> None:
    """Train RECIPE with differential privacy, and without for comparison."""
    with refusals():
        chosen = recipes.load(recipe)
    given = {name: value for name, value in overrides.items() if value is not None}
    console = Console(quiet=as_json)
    comparison = _compare(replace(chosen, **given), seed, console)
    if as_json:
        click.echo(json.dumps(comparison.as_dict(), indent=2))
        return
    console.print(comparison.as_table())
    if seed is not None:
        console.print("Seeded: the noise can be recomputed, so this run protects nobody.")


def _compare(recipe: Recipe, seed: int | None, console: Console) -> Comparison:
    with refusals():
        split = recipe.load_data()
        model = _initial_model(recipe, seed)
        twin = copy.deepcopy(model)
        engine = attach(recipe, split, model, seed=seed)
    with live(console, "private", recipe.epochs) as on_epoch:
        private = train_private(recipe, split, model, engine, on_epoch=on_epoch)
    with live(console, "non-private", recipe.epochs) as on_epoch:
        ordinary = train_ordinary(recipe, split, twin, seed=seed, on_epoch=on_epoch)
    return Comparison(recipe, seed, engine, private, ordinary)


def _initial_model(recipe: Recipe, seed: int | None) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return recipe.build_model()
