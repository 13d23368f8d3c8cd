"""What a sweep says, as a JSON object, as tables, as maps; and what choosing from it costs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from quietgrad.cli.changes import Changes, changes, course, titled, told
from quietgrad.cli.sweep_axes import Axis
from quietgrad.cli.sweep_cost import Cost
from quietgrad.plots.heat_maps import heat_maps
from quietgrad.recipes import Recipe
from quietgrad.recipes.trial import Trial, finite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = dict[tuple[float, ...], float]
"""Of each combination of values."""


@dataclass(frozen=True)
class Report:
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
    def _cost(self) -> Cost | None:
        choices = sum(len(found) for found in self.scores.values())
        private = [trial for trial in self.trials if trial.noise_multiplier is not None]
        delta = self.recipe.settings.delta
        return Cost.of(private, delta=delta, choices=choices, seeds=self.seeds)

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
