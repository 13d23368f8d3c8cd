"""`quietgrad sweep RECIPE --over lr,radius`: how much the choice of settings matters."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_count, unknown_name
from quietgrad._format import json_number, printed
from quietgrad.accounting.accountants import profile
from quietgrad.accounting.events import GaussianEvent, Poisson
from quietgrad.accounting.tuning import RunsDistribution, TunedSearch, tuned
from quietgrad.cli.common import refusals, titled, write_figure
from quietgrad.cli.options import json_option
from quietgrad.cli.recipe_options import RequestedOptions, recipe_options
from quietgrad.cli.trials import (
    Bench,
    Changes,
    changes,
    conditions,
    describe_changes,
    finish,
    interval,
    split_clippings,
    trial_options,
    variants_of,
)
from quietgrad.plots.runs import heat_maps, require_matplotlib
from quietgrad.recipes.recipe import Recipe, Settings
from quietgrad.recipes.trials import Trial, finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = dict[tuple[float, ...], float]
"""Means by combination of values."""

_RESULTS = ("sweep.json", "sweep.svg")
_FIELDS = {
    "lr": "learning_rate",
    "radius": "radius",
    "stability": "stability",
    "momentum": "momentum",
    "epsilon": "epsilon",
    "weight-decay": "weight_decay",
    "inner-momentum": "inner_momentum",
}
_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the recipe's learning rate
_DEFAULTS: dict[str, tuple[float, ...]] = {
    "radius": (0.001, 0.01, 0.1, 1.0, 10.0),
    "stability": (0.001, 0.01, 0.1, 1.0),
    "momentum": (0.0, 0.5, 0.9),
    "epsilon": (1.0, 2.0, 3.0, 8.0),
    "weight-decay": (0.0, 0.0001, 0.001, 0.01),
    "inner-momentum": (0.08, 0.3),
}


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_options
@click.option(
    "--over",
    multiple=True,
    required=True,
    help="One or two settings: lr,radius; or with values: --over lr=0.1,0.2 --over radius=0.1,1.",
)
@trial_options(seeds=1, each="setting")
@json_option
def sweep(
    asked: RequestedOptions,
    over: tuple[str, ...],
    seeds: int,
    out: Path | None,
    resume: bool,
    as_json: bool,
) -> None:
    """Train RECIPE with every value of one or two settings.

    --clipping takes several names, separated by commas, and prints a map for each. With --out, the
    maps are also drawn. Settings: lr, radius, stability, momentum, epsilon, weight-decay,
    inner-momentum.
    """
    console = Console(quiet=as_json)
    asked, names = split_clippings(asked, "")
    with refusals():
        require_count("seeds", seeds, at_least=1)
        if out is not None:
            require_matplotlib()
        variants = variants_of(asked, names)
        chosen = list(variants.values())
        axes = parse_axes(over, chosen[0].settings)
        for variant, axis in itertools.product(chosen, axes):
            for value in axis.values:  # refuses what is not possible
                _ = variant.changed(**{axis.field: value}).settings.engine_options
        bench = Bench(console, chosen, asked, out=out, resume=resume, results=_RESULTS)
    with bench.resume_hint_on_interrupt():
        scores = {
            name: _scores(bench, name, variant, axes, seeds) for name, variant in variants.items()
        }
    report = SweepReport(chosen[0], tuple(axes), scores, seeds, tuple(bench.used), asked.smoke)
    finish(
        report.as_dict(),
        report.show,
        console,
        None if out is None else out / _RESULTS[0],
        as_json=as_json,
    )
    if out is not None:
        write_figure(report.figure(), out / _RESULTS[1])


def _scores(bench: Bench, name: str, variant: Recipe, axes: list["Axis"], seeds: int) -> Scores:
    metric = f"test_{variant.task.metric}"
    found: Scores = {}
    for values in itertools.product(*(axis.values for axis in axes)):
        chosen = dict(zip((axis.field for axis in axes), values, strict=True))
        title = " ".join([name, *(f"{a.name} {v:g}" for a, v in zip(axes, values, strict=True))])
        made = bench.trials(title, variant.changed(**chosen), range(seeds))
        found[values] = interval([trial.scores[metric] for trial in made]).mean
    return found


# Which settings are swept over, and which values they take.


@dataclass(frozen=True)
class Axis:
    """A setting by its name on the command line, and the values that it takes."""

    name: str
    values: tuple[float, ...]

    @property
    def field(self) -> str:
        """The setting it changes."""
        return _FIELDS[self.name]


def parse_axes(over: Sequence[str], settings: Settings) -> list[Axis]:
    """What `--over` asks for: `lr,radius`, or `lr=0.1,0.2,0.4` for values of one's own.

    Raises:
        ValueError: it is not understood, or there are more than two.
    """
    axes = [axis for part in over for axis in _parse_axis(part, settings)]
    if not 1 <= len({axis.name for axis in axes}) == len(axes) <= 2:
        raise ValueError(f"--over {' --over '.join(over)}: expected one or two different settings")
    return axes


def _parse_axis(part: str, settings: Settings) -> list[Axis]:
    name, given, values = part.partition("=")
    for each in [name] if given else part.split(","):
        if each not in _FIELDS:
            raise unknown_name("setting to sweep over", each, _FIELDS)
    if not given:
        around = tuple(settings.learning_rate * factor for factor in _AROUND)
        return [Axis(each, _DEFAULTS.get(each, around)) for each in part.split(",")]
    try:
        numbers = {float(value) for value in values.split(",")}
    except ValueError:
        raise ValueError(
            f"--over {part}: expected numbers with commas between them, as in lr=0.1,0.2"
        ) from None
    return [Axis(name, tuple(sorted(numbers)))]


# What was found.


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
        columns, rows = self.axes[0], self._rows
        return heat_maps(
            {name: self._grid(found) for name, found in self.scores.items()},
            columns=(columns.name, columns.values),
            rows=(rows.name, rows.values),
            title=self._title(self.recipe.name),
        )

    def _title(self, name: str) -> str:
        trained = conditions(self.recipe.settings, self._swept)
        return f"{titled(name, smoke=self.smoke)}: test {self.recipe.task.metric}, {trained}"

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
    def _rows(self) -> Axis:
        return self.axes[1] if len(self.axes) > 1 else Axis("", (0.0,))

    def _grid(self, found: Scores) -> list[list[float]]:
        """Scores by row and column, shares in per cent."""
        columns, size = self.axes[0].values, len(self.axes)
        return [[found[(x, y)[:size]] * self._scale for x in columns] for y in self._rows.values]

    def _table(self, name: str, found: Scores) -> Table:
        columns, rows = self.axes[0], self._rows
        corner = f"{rows.name} \\ {columns.name}" if rows.name else columns.name
        table = Table(corner, title=self._title(name))
        for value in columns.values:
            table.add_column(f"{value:g}", justify="right")
        for row, line in zip(rows.values, self._grid(found), strict=True):
            table.add_row(f"{row:g}" if rows.name else "", *(f"{each:.2f}" for each in line))
        return table

    @cached_property
    def _cost(self) -> "SweepCost | None":
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
        if changed := describe_changes(self._changed, smoke=self.smoke):
            notes.append(f"Changed from the recipe: {changed}.")
        if self._cost is None:
            known = "Poisson sampling and add-remove-one only"
            return [*notes, f"The cost of releasing the best run is known for {known}."]
        return [*notes, *self._cost.lines()]


# What the search costs.


@dataclass(frozen=True)
class SweepCost:
    """All figures by the Renyi accountant, which are upper bounds.

    Attributes:
        search: a random search with as many choices on average as there are settings, their number
            drawn in the way that is cheapest. What it calls a run is all runs of a choice: whoever
            chooses by their mean looks at each of them.
        runs_per_choice: one for each seed.
        run_epsilon: of the one run that spends most.
        runs: that were made.
        naive_epsilon: of all of them, which is what a fixed grid costs.
    """

    search: TunedSearch
    runs_per_choice: int
    run_epsilon: float
    runs: int
    naive_epsilon: float

    @classmethod
    def of(
        cls, trials: Sequence[Trial], *, delta: float, choices: int, seeds: int
    ) -> "SweepCost | None":
        """What is known about a sweep; None where nothing is.

        Args:
            trials: of this sweep and no other, private ones.
            delta: of each.
            choices: of settings, from which the best is taken.
            seeds: runs of each.
        """
        settings = [trial.settings for trial in trials]
        if not all(
            each["sampling"] == "poisson" and each["adjacency"] in (None, "add-remove-one")
            for each in settings
        ):
            return None
        events = [_event(trial) for trial in trials]
        worst = _worst(events)
        of_choice = [replace(worst, steps=worst.steps * seeds)]
        kinds: tuple[RunsDistribution, ...] = get_args(RunsDistribution)
        searches = (
            tuned(mean_runs=choices, delta=delta, distribution=kind, events=of_choice)
            for kind in kinds
        )
        cheapest = min(searches, key=lambda search: search.epsilon)
        return cls(
            replace(cheapest, noise_multiplier=worst.noise_multiplier),
            seeds,
            profile([worst], accountant="rdp").epsilon(delta),
            len(trials),
            profile(events, accountant="rdp").epsilon(delta),
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **asdict(self.search),
            "epsilon": json_number(self.search.epsilon),
            "single_run_epsilon": json_number(self.run_epsilon),
            "runs_per_choice": self.runs_per_choice,
            "choice_epsilon": json_number(self.search.single_run_epsilon),
            "accountant": "rdp",
            "naive_runs": self.runs,
            "naive_epsilon": json_number(self.naive_epsilon),
        }

    def lines(self) -> list[str]:
        """The same for people."""
        search = self.search
        drawn = search.distribution.replace("poisson", "Poisson")
        searched = f"{search.mean_runs:g} runs on average"
        if self.runs_per_choice > 1:
            searched = f"{search.mean_runs:g} choices on average, each {self.runs_per_choice} runs,"
        return [
            "On private data, releasing the best of this fixed grid would spend epsilon"
            f" {printed(self.naive_epsilon)} (all {self.runs} runs composed); one run spends"
            f" {printed(self.run_epsilon)}.",
            f"A random search with {searched} would spend {printed(search.epsilon)}, if their"
            f" number is drawn from a {drawn} distribution (the cheapest of quietgrad tune-cost).",
            f"Upper bounds by the Renyi accountant, delta {search.delta:g}. More: quietgrad"
            " tune-cost --help, docs/accounting.md.",
        ]


def _event(trial: Trial) -> GaussianEvent:
    assert trial.noise_multiplier is not None
    assert trial.sample_rate is not None
    return GaussianEvent(trial.noise_multiplier, Poisson(trial.sample_rate), trial.steps)


def _worst(events: Sequence[GaussianEvent]) -> GaussianEvent:
    """What spends at least as much as any of them, at every order of the Renyi divergence.

    That is the one that spends most, where all have the same sampling and steps, as they do unless
    a recipe has others for a clipping function. A search needs a bound for every order: the run
    with the largest epsilon need not be the worst at all of them.
    """
    rates = [each.sampling.rate for each in events if isinstance(each.sampling, Poisson)]
    return GaussianEvent(
        min(each.noise_multiplier for each in events),
        Poisson(max(rates)),
        max(each.steps for each in events),
    )
