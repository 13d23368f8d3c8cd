"""`quietgrad compare RECIPE`: clipping functions beside each other, and beside the paper."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad._checks import require_count
from quietgrad.cli.common import counted, refusals, titled
from quietgrad.cli.options import json_option
from quietgrad.cli.recipe_options import RequestedOptions, recipe_options
from quietgrad.cli.trials import (
    Bench,
    Changes,
    Interval,
    changes,
    conditions,
    describe_changes,
    finish,
    interval,
    is_beside_papers,
    split_clippings,
    trial_options,
    variants_of,
)
from quietgrad.recipes.recipe import Recipe, Reference
from quietgrad.recipes.trials import NOT_PRIVATE, Trial, finite

_COMPARED = "abadi,auto-s,psac"
_RESULT = "compare.json"


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_options
@trial_options(seeds=5, each="clipping function")
@click.option("--baseline", is_flag=True, help="Also train without privacy.")
@json_option
def compare(
    asked: RequestedOptions,
    seeds: int,
    out: Path | None,
    resume: bool,
    baseline: bool,
    as_json: bool,
) -> None:
    """Train RECIPE with several clipping functions and compare them.

    --clipping takes several names, separated by commas (default: abadi,auto-s,psac). Each function
    is trained with the settings that the recipe has for it. The seeds are 0, 1, ...: the figures
    can be reproduced, and therefore the runs protect nobody.
    """
    console = Console(quiet=as_json)
    asked, names = split_clippings(asked, _COMPARED)
    with refusals():
        require_count("seeds", seeds, at_least=1)
        variants = variants_of(asked, names)
        chosen = list(variants.values())
        for variant in chosen:
            _ = variant.settings.engine_options  # refuses what the clipping function does not take
        bench = Bench(console, chosen, asked, out=out, resume=resume, results=[_RESULT])
    with bench.resume_hint_on_interrupt():
        columns = [
            Column.of(name, variant, bench.trials(name, variant, range(seeds)))
            for name, variant in variants.items()
        ]
        if baseline:
            made = bench.trials("non-private", chosen[0], range(seeds), is_private=False)
            columns.append(Column.of(NOT_PRIVATE, chosen[0], made))
    report = CompareReport(chosen[0], tuple(columns), asked.smoke)
    finish(
        report.as_dict(),
        report.show,
        console,
        None if out is None else out / _RESULT,
        as_json=as_json,
    )


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

    @property
    def _papers(self) -> list[Reference]:
        return [column.reference for column in self.columns if column.reference is not None]

    @property
    def _changed(self) -> Changes:
        """In any column: options are the same for all, what the recipe has for each may not be."""
        found: Changes = {}
        for column in self.columns:
            found = changes(column.recipe) | found
        return found

    def _table(self) -> Table:
        task = self.recipe.task
        name = titled(self.recipe.name, smoke=self.smoke)
        table = Table(title=f"{name}: {conditions(self.recipe.settings)}")
        table.add_column("clipping")
        paper = ["paper"] if self._papers else []
        for title in (f"test {task.metric}", *paper, "learning rate", "radius", "time"):
            table.add_column(title, justify="right")
        for column in self.columns:
            table.add_row(*self._row(column))
        return table

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

    def _notes(self) -> list[str]:
        seeds = len(self.columns[0].trials)
        notes = [
            f"Mean of {counted(seeds, 'seed')} with its 95 % interval."
            if seeds > 1
            else "One seed: no interval.",
            "Seeded: these runs protect nobody. Choosing the best of them costs privacy as well"
            " (quietgrad tune-cost).",
        ]
        if changed := self._describe_all_changes():
            notes.append(f"Changed from the recipe: {changed}.")
        if self._papers and not is_beside_papers(self._changed, smoke=self.smoke):
            notes.append("The papers' figures are not for these settings.")
        return notes + [f"Paper: {line}." for line in _sources(self._papers)]

    def _describe_all_changes(self) -> str:
        """Those of all columns, and then those of single ones."""
        found = {c.name: changes(c.recipe) for c in self.columns if c.name != NOT_PRIVATE}
        common = {
            name: pair
            for name, pair in self._changed.items()
            if all(each.get(name) == pair for each in found.values())
        }
        parts = [describe_changes(common, smoke=self.smoke)]
        for clipping, each in found.items():
            if own := describe_changes(
                {name: pair for name, pair in each.items() if name not in common}
            ):
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
