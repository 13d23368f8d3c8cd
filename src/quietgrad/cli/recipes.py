"""`quietgrad recipes [NAME]`: what can be trained, and with which settings."""

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from quietgrad import recipes as known
from quietgrad.cli.common import refusals
from quietgrad.cli.options import json_option
from quietgrad.recipes.recipe import Recipe

# Words of docs/recipes.md, as somebody at a terminal needs them.
_DATA = {
    "fetch ": "quietgrad data fetch ",
    "folder": "a folder of your own for --data-dir (which files: quietgrad data list)",
    "--model-dir": "a pretrained model for --model-dir",
}


@click.command()
@click.argument("name", required=False)
@json_option
def recipes(name: str | None, as_json: bool) -> None:
    """Experiments that can be run by name.

    With NAME: all of its settings, and the figures of papers it is compared with.
    """
    with refusals():
        chosen = [known.load(each) for each in ([name] if name else known.names())]
    if as_json:
        described = [recipe.as_dict() for recipe in chosen]
        click.echo(json.dumps(described[0] if name else described, indent=2))
        return
    console = Console()
    if name is None:
        console.print(_list(chosen))
        console.print("Settings of one: quietgrad recipes NAME", highlight=False)
    else:
        _show(console, chosen[0])


def _list(every: list[Recipe]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("what")
    table.add_column("epsilon", justify="right")
    table.add_column("epochs", justify="right")
    for recipe in every:
        settings = recipe.settings
        table.add_row(recipe.name, recipe.summary, f"{settings.epsilon:g}", str(settings.epochs))
    return table


def _show(console: Console, recipe: Recipe) -> None:
    console.print(f"{recipe.name}: {recipe.summary}", highlight=False)
    console.print(f"data: {_data(recipe)}", highlight=False, soft_wrap=True)
    table = Table("setting", "value", box=None, pad_edge=False)
    for name, value in asdict(recipe.settings).items():
        is_off = name == "inner_momentum" and recipe.settings.inner_steps is None
        if value is not None and not is_off:
            table.add_row(name, str(value))
    console.print(table)
    for clipping, changes in recipe.tuned.items():
        told = ", ".join(f"{name} {value:g}" for name, value in changes.items())
        console.print(f"with {clipping}: {told}", highlight=False)
    _show_papers(console, recipe)


def _data(recipe: Recipe) -> str:
    """What must be there, in the commands and options that take it."""
    told = recipe.data.replace("`, `", " ").replace("`", "")
    for short, full in _DATA.items():
        told = told.replace(short, full)
    return told


def _show_papers(console: Console, recipe: Recipe) -> None:
    scale, unit = (100, " %") if recipe.task.is_share else (1, "")
    for each in recipe.references:
        at = (
            "without privacy"
            if each.epsilon is None
            else f"{each.clipping}, epsilon {each.epsilon:g}"
        )
        note = f" ({each.note})" if each.note else ""
        console.print(
            f"paper, {at}: {each.value * scale:.4g}{unit}, {each.source}{note}",
            highlight=False,
            soft_wrap=True,
        )
