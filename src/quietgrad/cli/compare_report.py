"""What a comparison says, as a JSON object and as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from quietgrad.cli.changes import Changes, changes, course, is_beside_papers, titled, told
from quietgrad.cli.intervals import Interval, interval
from quietgrad.cli.scores import counted
from quietgrad.recipes import Recipe, Reference
from quietgrad.recipes.trial import NOT_PRIVATE, Trial, finite


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
class Report:
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
