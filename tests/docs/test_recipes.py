"""docs/recipes.md names every recipe, command, option and file there is."""

import re

import click
import pytest
from tests.docs.blocks import ROOT

from quietgrad import recipes
from quietgrad.cli import main
from quietgrad.cli.train import train
from quietgrad.runs import folder

PAGE = ROOT / "docs/recipes.md"
TEXT = PAGE.read_text(encoding="utf-8")
TABLE = TEXT.split("## All recipes")[1].split("## Commands")[0]
COMMANDS = ("train", "compare", "sweep", "recipes", "report", "verify", "data list", "data fetch")


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_is_in_the_table_as_it_is(name):
    recipe = recipes.load(name)
    settings = recipe.settings
    (row,) = re.findall(rf"^\| `{name}` \|(.*)\|$", TABLE, re.MULTILINE)
    cells = [cell.strip() for cell in row.split("|")]
    shown = [f"{settings.epsilon:g}", str(settings.epochs), f"{settings.batch_size:,}"]
    assert cells[1] == recipe.data, f"{name}: its data in docs/recipes.md is outdated"
    assert cells[2:5] == shown, f"{name}: epsilon, epochs or batch in docs/recipes.md is outdated"


def test_no_recipe_is_listed_that_does_not_exist():
    assert re.findall(r"^\| `([\w-]+)` \|", TABLE, re.MULTILINE) == list(recipes.names())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_told(command):
    assert f"`quietgrad {command}" in TEXT
    found = main
    for part in command.split():
        context = click.Context(found)
        found = found.get_command(context, part)
        assert found is not None, command


def test_every_option_of_train_is_told():
    options = [name for option in train.params for name in option.opts if name.startswith("--")]
    assert len(options) > 20
    missing = [name for name in options if not re.search(rf"{name}\b", TEXT)]
    assert not missing


def test_every_file_of_a_run_is_told():
    files = re.findall(r"`(\w+\.\w+)`", folder.RunFolder.__doc__)
    assert len(files) == 8
    for name in files:
        assert f"| `{name}` |" in TEXT
