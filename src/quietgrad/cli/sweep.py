"""`quietgrad sweep RECIPE --over lr,radius`: how much the choice of settings matters."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_count
from quietgrad.cli.common import refusals, write_figure
from quietgrad.cli.recipe_options import (
    place_options,
    recipe_argument,
    recipe_options,
    require_settings,
    variants_of,
)
from quietgrad.cli.sweep_grid import Axis, SweepCost, axes_of
from quietgrad.cli.trials import (
    Bench,
    Changes,
    as_json,
    changes,
    course,
    interval,
    out_options,
    ready,
    titled,
    told,
)
from quietgrad.plots.runs import heat_maps, require_matplotlib
from quietgrad.recipes.recipe import Places, Recipe
from quietgrad.recipes.trials import Trial, finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = dict[tuple[float, ...], float]
"""Of each combination of values."""


@dataclass(frozen=True)
class SweepReport:
    """One recipe under all combinations of settings, for some clipping functions."""

    recipe: Recipe
    axes: tuple[Axis, ...]
    scores: Mapping[str, Scores]
    seeds: int
    trials: tuple[Trial, ...]
    smoke: bool

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "recipe": self.recipe.name,
            "metric": self.recipe.task.metric,
            "axes": [asdict(axis) for axis in self.axes],
            "seeds": self.seeds,
            "scores": {
                name: [
                    {"values": list(values), "mean": finite(mean)} for values, mean in found.items()
                ]
                for name, found in self.scores.items()
            },
            "smoke": self.smoke,
            "changed": {name: here for name, (here, _) in self._changed.items()},
            "tuning": None if self._cost is None else self._cost.as_dict(),
        }

    def show(self, console: Console) -> None:
        """The same for people."""
        for name, found in self.scores.items():
            console.print(self._table(name, found))
        for note in self._notes():
            console.print(note, highlight=False)

    def figure(self) -> "Figure":
        """A map for each clipping function."""
        columns, rows = self._columns, self._rows
        maps = {
            name: [[found[self._key(x, y)] for x in columns.values] for y in rows.values]
            for name, found in self.scores.items()
        }
        return heat_maps(
            maps,
            columns=(columns.name, columns.values),
            rows=(rows.name, rows.values),
            title=f"{titled(self.recipe.name, smoke=self.smoke)}: test {self.recipe.task.metric},"
            f" {course(self.recipe.settings, self._swept)}",
            scale=self._scale,
        )

    @property
    def _changed(self) -> Changes:
        """Besides what the sweep itself goes over."""
        found = changes(self.recipe)
        return {name: pair for name, pair in found.items() if name not in self._swept}

    @property
    def _swept(self) -> set[str]:
        return {axis.field for axis in self.axes}

    @property
    def _scale(self) -> float:
        return 100.0 if self.recipe.task.is_share else 1.0

    @property
    def _columns(self) -> Axis:
        return self.axes[0]

    @property
    def _rows(self) -> Axis:
        return self.axes[1] if len(self.axes) > 1 else Axis("", (0.0,))

    def _key(self, column: float, row: float) -> tuple[float, ...]:
        return (column, row) if len(self.axes) > 1 else (column,)

    def _table(self, name: str, found: Scores) -> Table:
        columns, rows = self._columns, self._rows
        table = Table(
            title=f"{titled(name, smoke=self.smoke)}: test {self.recipe.task.metric},"
            f" {course(self.recipe.settings, self._swept)}"
        )
        table.add_column(f"{rows.name} \\ {columns.name}" if rows.name else columns.name)
        for value in columns.values:
            table.add_column(f"{value:g}", justify="right")
        for row in rows.values:
            cells = (f"{found[self._key(x, row)] * self._scale:.2f}" for x in columns.values)
            table.add_row(f"{row:g}" if rows.name else "", *cells)
        return table

    @cached_property
    def _cost(self) -> SweepCost | None:
        choices = sum(len(found) for found in self.scores.values())
        private = [trial for trial in self.trials if trial.noise_multiplier is not None]
        delta = self.recipe.settings.delta
        return SweepCost.of(private, delta=delta, choices=choices, seeds=self.seeds)

    def _best(self) -> str:
        finite_ones = [
            (score, name)
            for name, found in self.scores.items()
            for score in found.values()
            if finite(score) is not None
        ]
        if not finite_ones:
            return "No score is finite: every run diverged."
        score, name = max(finite_ones)
        return f"Best: {score * self._scale:.2f} ({name})."

    def _notes(self) -> list[str]:
        notes = [f"{self._best()} These runs are seeded and protect nobody."]
        if changed := told(self._changed, smoke=self.smoke):
            notes.append(f"Not the recipe's own settings: {changed}.")
        if self._cost is None:
            return [*notes, "What releasing the best of a search costs is not known here."]
        return [*notes, *self._cost.lines()]


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
    report = SweepReport(chosen[0], tuple(axes), scores, seeds, tuple(bench.used), smoke)
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
