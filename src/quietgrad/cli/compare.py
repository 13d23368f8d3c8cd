"""`quietgrad compare RECIPE`: clipping functions beside each other, and beside the paper."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from quietgrad._checks import require_count
from quietgrad.cli.compare_report import Column, Report
from quietgrad.cli.failures import refusals
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.trials import as_json, out_options, ready
from quietgrad.cli.variants import require_settings, variants_of
from quietgrad.recipes import Places
from quietgrad.recipes.trials import NOT_PRIVATE

_COMPARED = "abadi,auto-s,psac"
_RESULT = "compare.json"


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_argument
@recipe_options
@place_options
@click.option("--seeds", type=int, default=5, show_default=True, help="Trainings of each.")
@click.option("--baseline", is_flag=True, help="Also train without privacy.")
@out_options
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object and nothing else.")
def compare(
    recipe: str,
    seeds: int,
    baseline: bool,
    out: Path | None,
    resume: bool,
    wants_json: bool,
    data_dir: Path | None,
    model_dir: Path | None,
    smoke: bool,
    **overrides: Any,
) -> None:
    """Train RECIPE with several clipping functions and compare.

    --clipping takes several names, with commas between them (default: abadi,auto-s,psac). Each is
    trained with the settings the recipe has for it. The seeds are 0, 1, ...: the figures can be
    reproduced, and therefore the runs protect nobody.
    """
    console = Console(quiet=wants_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    names = [each.strip() for each in given.pop("clipping", _COMPARED).split(",")]
    places = Places(data_dir, model_dir)
    with refusals():
        require_count("seeds", seeds, at_least=1)
        variants = variants_of(recipe, names, given, places, smoke=smoke)
        chosen = list(variants.values())
        require_settings(chosen)
        bench = ready(
            console, chosen, places, smoke=smoke, out=out, resume=resume, results=[_RESULT]
        )
    try:
        columns = [
            Column.of(name, variant, bench.trials(name, variant, range(seeds)))
            for name, variant in variants.items()
        ]
        if baseline:
            made = bench.trials("non-private", chosen[0], range(seeds), is_private=False)
            columns.append(Column.of(NOT_PRIVATE, chosen[0], made))
    except KeyboardInterrupt:
        raise bench.stopped() from None
    report = Report(chosen[0], tuple(columns), smoke)
    found = as_json(report.as_dict())
    if out is not None:
        with refusals():
            (out / _RESULT).write_text(found + "\n", encoding="utf-8")
    if wants_json:
        click.echo(found)
    else:
        report.show(console)
