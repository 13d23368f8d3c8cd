"""`quietgrad sweep RECIPE --over lr,radius`: how much the choice of settings matters."""

import itertools
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from quietgrad import clipping as clippings
from quietgrad._checks import require_count
from quietgrad.cli.failures import refusals
from quietgrad.cli.intervals import interval
from quietgrad.cli.picture import write_figure
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.request import Asked
from quietgrad.cli.sweep_axes import Axis, axes_of
from quietgrad.cli.sweep_report import Report, Scores
from quietgrad.cli.trials import Bench, kept_trials, out_options
from quietgrad.plots import require_matplotlib
from quietgrad.recipes import Places, Recipe


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def sweep(
    recipe: str,
    over: tuple[str, ...],
    seeds: int,
    out: Path | None,
    resume: bool,
    as_json: bool,
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
    console = Console(quiet=as_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    names = [each.strip() for each in given.pop("clipping", "").split(",") if each.strip()]
    places = Places(data_dir, model_dir)
    with refusals():
        require_count("seeds", seeds, at_least=1)
        if out is not None:
            require_matplotlib()
        base = Asked(recipe, given, places, smoke, None).resolved()
        axes = axes_of(over, base.settings)
        variants = {name: _variant(base, name) for name in names or [base.settings.clipping]}
        _require_possible(variants, axes)
        trials = kept_trials(out, resume=resume)
        bench = Bench(console, base.split(places), places, trials)
    try:
        scores = {
            name: _scores(bench, name, variant, axes, seeds) for name, variant in variants.items()
        }
    except KeyboardInterrupt:
        raise bench.stopped(f"quietgrad sweep {recipe} {_again(over)} --out {out}") from None
    report = Report(base, tuple(axes), scores, seeds, tuple(trials.made.values()))
    if out is not None:
        (out / "sweep.json").write_text(json.dumps(report.as_dict(), indent=2) + "\n")
        write_figure(report.figure(), out / "sweep.svg")
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2))
    else:
        report.show(console)
        if out is not None:
            console.print(f"Drawn in {out / 'sweep.svg'}", highlight=False, soft_wrap=True)


def _variant(base: Recipe, clipping: str) -> Recipe:
    clippings.resolve(clipping)
    return base if clipping == base.settings.clipping else base.changed(clipping=clipping)


def _require_possible(variants: dict[str, Recipe], axes: list[Axis]) -> None:
    """Refuse now what would be refused after hours."""
    for variant in variants.values():
        for axis in axes:
            for value in axis.values:
                _ = variant.changed(**{axis.field: value}).settings.clipping_function


def _scores(bench: Bench, name: str, variant: Recipe, axes: list[Axis], seeds: int) -> Scores:
    metric = f"test_{variant.task.metric}"
    found: Scores = {}
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip((axis.field for axis in axes), values, strict=True))
        title = " ".join([name, *(f"{a.name} {v:g}" for a, v in zip(axes, values, strict=True))])
        made = bench.trials(title, variant.changed(**chosen), range(seeds))
        found[values] = interval([trial.scores[metric] for trial in made]).mean
    return found


def _again(over: tuple[str, ...]) -> str:
    return " ".join(f"--over {part}" for part in over)
