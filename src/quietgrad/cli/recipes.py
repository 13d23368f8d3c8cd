"""`quietgrad recipes [NAME]`: what can be trained, and with which settings."""

from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from quietgrad import recipes as known
from quietgrad.cli.common import print_result, refusals, say
from quietgrad.cli.options import json_option
from quietgrad.recipes.recipe import Recipe

# Words of docs/recipes.md, as somebody at a terminal needs them.
_DATA = {
    "`, `": " ",
    "`": "",
    "fetch ": "quietgrad data fetch ",
    "folder": "a folder of your own for --data-dir (which files: quietgrad data list)",
    "--model-dir": "a pretrained model for --model-dir",
}


@click.command()
@click.argument("name", required=False)
@json_option
def recipes(name: str | None, as_json: bool) -> None:
    """List the recipes, or show the settings of one.

    With NAME: all settings of this recipe, and the figures of papers it is compared with. NAME may
    also be a recipe of your own, MODULE:FUNCTION or FILE.py:FUNCTION.
    """
    broken: dict[str, str] = {}
    with refusals():
        chosen = [known.load(each) for each in ([name] if name else known.names())]
        for other in () if name else known.installed():
            try:
                chosen.append(known.load(other))
            except ValueError as error:  # of another package: the others are listed all the same
                broken[other] = str(error)
    found = [recipe.as_dict() for recipe in chosen]

    def show(console: Console) -> None:
        if name is not None:
            _show_settings(console, chosen[0])
            return
        console.print(_list(chosen))
        for other, why in broken.items():
            say(console, f"{other} cannot be loaded: {why}")
        say(
            console,
            "Settings of one: quietgrad recipes NAME",
            "One of your own: quietgrad train FILE.py:FUNCTION (docs/recipes.md)",
        )

    print_result(found[0] if name else found, show, as_json=as_json)


def _list(every: list[Recipe]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    table.add_column("what is trained")
    table.add_column("epsilon", justify="right")
    table.add_column("epochs", justify="right")
    for recipe in every:
        settings = recipe.settings
        table.add_row(recipe.name, recipe.summary, f"{settings.epsilon:g}", str(settings.epochs))
    return table


def _show_settings(console: Console, recipe: Recipe) -> None:
    data = recipe.data
    for short, full in _DATA.items():
        data = data.replace(short, full)
    say(console, f"{recipe.name}: {recipe.summary}", f"data: {data}")
    table = Table("setting", "value", box=None, pad_edge=False)
    for name, value in asdict(recipe.settings).items():
        is_off = name == "inner_momentum" and recipe.settings.inner_steps is None
        if value is not None and not is_off:
            table.add_row(name, str(value))
    console.print(table)
    for clipping, changes in recipe.tuned.items():
        tuned = ", ".join(f"{name} {value:g}" for name, value in changes.items())
        say(console, f"with {clipping}: {tuned}")
    scale, unit = (100, " %") if recipe.task.is_share else (1, "")
    for each in recipe.references:
        at = "without privacy"
        if each.epsilon is not None:
            at = f"{each.clipping}, epsilon {each.epsilon:g}"
        note = f" ({each.note})" if each.note else ""
        say(console, f"paper, {at}: {each.value * scale:.4g}{unit}, {each.source}{note}")
