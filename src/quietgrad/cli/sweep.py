"""`quietgrad sweep RECIPE --over lr,radius`: how much the choice of settings matters."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from quietgrad._checks import require_count
from quietgrad.cli.failures import refusals
from quietgrad.cli.intervals import interval
from quietgrad.cli.picture import write_figure
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.sweep_axes import Axis, axes_of
from quietgrad.cli.sweep_report import Report, Scores
from quietgrad.cli.trials import Bench, as_json, out_options, ready
from quietgrad.cli.variants import require_settings, variants_of
from quietgrad.plots import require_matplotlib
from quietgrad.recipes import Places, Recipe

_RESULTS = ("sweep.json", "sweep.svg")


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_argument
@recipe_options
@place_options
@click.option(
    "--over",
    multiple=True,
    required=True,
    help="One or two settings: lr,radius; or with values: --over lr=0.1,0.2 --over radius=0.1,1.",
)
@click.option("--seeds", type=int, default=1, show_default=True, help="Trainings of each.")
@out_options
@click.option("--json", "wants_json", is_flag=True, help="Print one JSON object and nothing else.")
def sweep(
    recipe: str,
    over: tuple[str, ...],
    seeds: int,
    out: Path | None,
    resume: bool,
    wants_json: bool,
    data_dir: Path | None,
    model_dir: Path | None,
    smoke: bool,
    **overrides: Any,
) -> None:
    """Train RECIPE with all values of one or two settings.

    --clipping takes several names, with commas between them: a map for each. With --out, the maps
    are drawn as well. Settings: lr, radius, stability, momentum, epsilon, weight-decay,
    inner-momentum.
    """
    console = Console(quiet=wants_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    names = [each.strip() for each in given.pop("clipping", "").split(",") if each.strip()]
    places = Places(data_dir, model_dir)
    with refusals():
        require_count("seeds", seeds, at_least=1)
        if out is not None:
            require_matplotlib()
        variants = variants_of(recipe, names, given, places, smoke=smoke)
        chosen = list(variants.values())
        axes = axes_of(over, chosen[0].settings)
        require_settings(_each_value(chosen, axes))
        bench = ready(
            console, chosen, places, smoke=smoke, out=out, resume=resume, results=_RESULTS
        )
    try:
        scores = {
            name: _scores(bench, name, variant, axes, seeds) for name, variant in variants.items()
        }
    except KeyboardInterrupt:
        raise bench.stopped() from None
    report = Report(chosen[0], tuple(axes), scores, seeds, tuple(bench.used), smoke)
    found = as_json(report.as_dict())
    if out is not None:
        with refusals():
            (out / _RESULTS[0]).write_text(found + "\n", encoding="utf-8")
            write_figure(report.figure(), out / _RESULTS[1])
    if wants_json:
        click.echo(found)
    else:
        report.show(console)
        if out is not None:
            console.print(f"Drawn in {out / _RESULTS[1]}", highlight=False, soft_wrap=True)


def _each_value(variants: Iterable[Recipe], axes: Sequence[Axis]) -> Iterator[Recipe]:
    """Making them refuses what is not possible."""
    for variant in variants:
        for axis in axes:
            for value in axis.values:
                yield variant.changed(**{axis.field: value})


def _scores(bench: Bench, name: str, variant: Recipe, axes: list[Axis], seeds: int) -> Scores:
    metric = f"test_{variant.task.metric}"
    found: Scores = {}
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip((axis.field for axis in axes), values, strict=True))
        title = " ".join([name, *(f"{a.name} {v:g}" for a, v in zip(axes, values, strict=True))])
        made = bench.trials(title, variant.changed(**chosen), range(seeds))
        found[values] = interval([trial.scores[metric] for trial in made]).mean
    return found
