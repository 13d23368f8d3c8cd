"""`quietgrad compare RECIPE`: clipping functions beside each other, and beside the paper."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_count
from quietgrad.cli.common import counted, refusals
from quietgrad.cli.recipe_options import (
    place_options,
    recipe_argument,
    recipe_options,
    require_settings,
    variants_of,
)
from quietgrad.cli.trials import (
    Changes,
    Interval,
    as_json,
    changes,
    course,
    interval,
    is_beside_papers,
    out_options,
    ready,
    titled,
    told,
)
from quietgrad.recipes.recipe import Places, Recipe, Reference
from quietgrad.recipes.trials import NOT_PRIVATE, Trial, finite


@dataclass(frozen=True)
class Column:
    """One clipping function.

    Attributes:
        name: of the function, or "none" without privacy.
        recipe: with the settings for it.
        trials: one for each seed.
        reference: the paper's figure.
    """

    name: str
    recipe: Recipe
    trials: tuple[Trial, ...]
    reference: Reference | None

    @classmethod
    def of(cls, name: str, recipe: Recipe, trials: Sequence[Trial]) -> "Column":
        """With the paper's figure at the recipe's epsilon."""
        epsilon = None if name == NOT_PRIVATE else recipe.settings.epsilon
        return cls(name, recipe, tuple(trials), recipe.reference(name, epsilon))

    @property
    def score(self) -> Interval:
        """Mean over the seeds."""
        metric = f"test_{self.recipe.task.metric}"
        return interval([trial.scores[metric] for trial in self.trials])

    def as_dict(self) -> dict[str, Any]:
        """Everything."""
        return {
            "clipping": self.name,
            "mean": finite(self.score.mean),
            "margin": finite(self.score.margin),
            "reference": None if self.reference is None else asdict(self.reference),
            "trials": [trial.as_dict() for trial in self.trials],
        }


@dataclass(frozen=True)
class CompareReport:
    """Several clipping functions on one recipe."""

    recipe: Recipe
    columns: tuple[Column, ...]
    smoke: bool

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "recipe": self.recipe.name,
            "metric": self.recipe.task.metric,
            "smoke": self.smoke,
            "changed": {name: here for name, (here, _) in self._changed.items()},
            "columns": [column.as_dict() for column in self.columns],
        }

    def show(self, console: Console) -> None:
        """The same for people."""
        console.print(self._table())
        for note in self._notes():
            console.print(note, highlight=False)

    def _table(self) -> Table:
        task = self.recipe.task
        name = titled(self.recipe.name, smoke=self.smoke)
        table = Table(title=f"{name}: {course(self.recipe.settings)}")
        table.add_column("clipping")
        paper = ["paper"] if self._papers else []
        for title in (f"test {task.metric}", *paper, "learning rate", "radius", "time"):
            table.add_column(title, justify="right")
        for column in self.columns:
            table.add_row(*self._row(column))
        return table

    @property
    def _papers(self) -> list[Reference]:
        return [column.reference for column in self.columns if column.reference is not None]

    def _row(self, column: Column) -> tuple[str, ...]:
        settings, paper = column.recipe.settings, column.reference
        scale = 100.0 if self.recipe.task.is_share else 1.0
        private = column.name != NOT_PRIVATE
        rate = settings.learning_rate
        if not private:
            rate = settings.ordinary_learning_rate or rate
        seconds = sum(trial.seconds for trial in column.trials) / len(column.trials)
        return (
            column.name if private else "without privacy",
            column.score.text(scale),
            *(["" if paper is None else f"{paper.value * scale:.2f}"] if self._papers else []),
            f"{rate:g}",
            f"{settings.radius:g}" if private else "",
            f"{seconds:.0f} s",
        )

    @property
    def _changed(self) -> Changes:
        """In any column: options are the same for all, what the recipe has for each may not be."""
        found: Changes = {}
        for column in self.columns:
            found = changes(column.recipe) | found
        return found

    def _notes(self) -> list[str]:
        seeds = len(self.columns[0].trials)
        notes = [
            f"Mean of {counted(seeds, 'seed')} with its 95 % interval."
            if seeds > 1
            else "One seed: no interval.",
            "Seeded: these runs protect nobody. Choosing the best of them costs privacy as well"
            " (quietgrad tune-cost).",
        ]
        if changed := self._told_changes():
            notes.append(f"Not the recipe's own settings: {changed}.")
        if self._papers and not is_beside_papers(self._changed, smoke=self.smoke):
            notes.append("The papers' figures are not for these settings.")
        return notes + [f"Paper: {line}." for line in _sources(self._papers)]

    def _told_changes(self) -> str:
        """Those of all columns, and then those of single ones."""
        found = {c.name: changes(c.recipe) for c in self.columns if c.name != NOT_PRIVATE}
        common = {
            name: pair
            for name, pair in self._changed.items()
            if all(each.get(name) == pair for each in found.values())
        }
        parts = [told(common, smoke=self.smoke)]
        for clipping, each in found.items():
            if own := told({name: pair for name, pair in each.items() if name not in common}):
                parts.append(f"for {clipping}: {own}")
        return "; ".join(part for part in parts if part)


def _sources(papers: Sequence[Reference]) -> list[str]:
    """Each source once, with the clipping functions it is cited for and what it notes."""
    cited: dict[tuple[str, str], list[str]] = {}
    for each in papers:
        name = "without privacy" if each.clipping == NOT_PRIVATE else each.clipping
        cited.setdefault((each.source, each.note), []).append(name)
    return [
        f"{', '.join(names)} from {source}{f' ({note})' if note else ''}"
        for (source, note), names in cited.items()
    ]


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
    report = CompareReport(chosen[0], tuple(columns), smoke)
    found = as_json(report.as_dict())
    if out is not None:
        with refusals():
            (out / _RESULT).write_text(found + "\n", encoding="utf-8")
    if wants_json:
        click.echo(found)
    else:
        report.show(console)
