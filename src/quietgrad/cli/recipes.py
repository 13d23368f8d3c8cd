"""`quietgrad recipes`: what can be trained."""

import json

import click
from rich.console import Console
from rich.table import Table

from quietgrad import recipes as known
from quietgrad.cli.options import json_option
from quietgrad.recipes import Recipe, Reference


@click.command()
@json_option
def recipes(as_json: bool) -> None:
    """Experiments that can be run by name."""
    every = [known.load(name) for name in known.names()]
    if as_json:
        click.echo(json.dumps([recipe.as_dict() for recipe in every], indent=2))
        return
    table = Table("recipe", "what", "epsilon", "epochs", "paper")
    for recipe in every:
        settings = recipe.settings
        table.add_row(
            recipe.name,
            recipe.summary,
            f"{settings.epsilon:g}",
            str(settings.epochs),
            ", ".join(_figure(recipe, each) for each in recipe.references),
        )
    Console().print(table)


def _figure(recipe: Recipe, reference: Reference) -> str:
    scale = 100 if recipe.task.is_share else 1
    return f"{reference.clipping} {reference.value * scale:.4g}"
