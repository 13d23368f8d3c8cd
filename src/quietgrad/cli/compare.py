"""`quietgrad compare RECIPE`: clipping functions beside each other, and beside the paper."""

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from quietgrad import clipping as clippings
from quietgrad._checks import require_count
from quietgrad.cli.compare_report import Column, Report
from quietgrad.cli.failures import refusals
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.request import Asked
from quietgrad.cli.trials import Bench, kept_trials, out_options
from quietgrad.recipes import Places, Recipe
from quietgrad.recipes.trials import NOT_PRIVATE

_COMPARED = "abadi,auto-s,psac"


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_argument
@recipe_options
@place_options
@click.option("--seeds", type=int, default=5, show_default=True, help="Trainings of each.")
@click.option("--baseline", is_flag=True, help="Also train without privacy.")
@out_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def compare(
    recipe: str,
    seeds: int,
    baseline: bool,
    out: Path | None,
    resume: bool,
    as_json: bool,
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
    console = Console(quiet=as_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    names = [each.strip() for each in given.pop("clipping", _COMPARED).split(",")]
    places = Places(data_dir, model_dir)
    with refusals():
        require_count("seeds", seeds, at_least=1)
        variants = {
            name: _variant(Asked(recipe, {**given, "clipping": name}, places, smoke, None))
            for name in names
        }
        first = next(iter(variants.values()))
        trials = kept_trials(out, resume=resume)
        bench = Bench(console, first.split(places), places, trials)
    try:
        columns = [
            Column.of(name, variant, bench.trials(name, variant, range(seeds)))
            for name, variant in variants.items()
        ]
        if baseline:
            made = bench.trials("non-private", first, range(seeds), is_private=False)
            columns.append(Column.of(NOT_PRIVATE, first, made))
    except KeyboardInterrupt:
        raise bench.stopped(f"quietgrad compare {recipe} --out {out}") from None
    report = Report(first, tuple(columns))
    if out is not None:
        (out / "compare.json").write_text(json.dumps(report.as_dict(), indent=2) + "\n")
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        report.show(console)


def _variant(asked: Asked) -> Recipe:
    clippings.resolve(asked.changes["clipping"])
    return asked.resolved()
