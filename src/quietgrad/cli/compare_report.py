"""What a comparison says, as a JSON object and as a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from quietgrad.cli.intervals import Interval, interval
from quietgrad.cli.scores import counted
from quietgrad.recipes import Recipe, Reference
from quietgrad.recipes.trials import NOT_PRIVATE, Trial


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
            "mean": self.score.mean,
            "margin": self.score.margin,
            "reference": None if self.reference is None else asdict(self.reference),
            "trials": [asdict(trial) for trial in self.trials],
        }


@dataclass(frozen=True)
class Report:
    """Several clipping functions on one recipe."""

    recipe: Recipe
    columns: tuple[Column, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "recipe": self.recipe.name,
            "metric": self.recipe.task.metric,
            "columns": [column.as_dict() for column in self.columns],
        }

    def show(self, console: Console) -> None:
        """The same for people."""
        console.print(self._table())
        for note in self._notes():
            console.print(note, highlight=False)

    def _table(self) -> Table:
        settings, task = self.recipe.settings, self.recipe.task
        epochs = counted(settings.epochs, "epoch")
        table = Table(title=f"{self.recipe.name}: epsilon {settings.epsilon:g}, {epochs}")
        table.add_column("clipping")
        for title in (f"test {task.metric}", "paper", "learning rate", "radius", "time"):
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
            "" if paper is None else f"{paper.value * scale:.2f}",
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
        sources = {c.reference.source: c.reference.note for c in self.columns if c.reference}
        notes += [f"Paper: {s}{f' ({note})' if note else ''}." for s, note in sources.items()]
        return notes
