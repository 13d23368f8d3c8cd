"""What a sweep says, as a JSON object, as tables, as maps; and what choosing from it costs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from quietgrad import accounting
from quietgrad.cli.rounding import printed
from quietgrad.cli.scores import counted
from quietgrad.cli.sweep_axes import Axis
from quietgrad.plots.heat_maps import heat_maps
from quietgrad.recipes import Recipe
from quietgrad.recipes.trials import Trial

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

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        return {
            "recipe": self.recipe.name,
            "metric": self.recipe.task.metric,
            "axes": [asdict(axis) for axis in self.axes],
            "seeds": self.seeds,
            "scores": {
                name: [{"values": list(values), "mean": mean} for values, mean in found.items()]
                for name, found in self.scores.items()
            },
            "tuning": self._tuning(),
        }

    def show(self, console: Console) -> None:
        """The same for people."""
        for name, found in self.scores.items():
            console.print(self._table(name, found))
        for line in self._cost():
            console.print(line, highlight=False)

    def figure(self) -> "Figure":
        """A map for each clipping function."""
        columns, rows = self._columns, self._rows
        maps = {
            name: [[found[self._key(x, y)] for x in columns.values] for y in rows.values]
            for name, found in self.scores.items()
        }
        settings = self.recipe.settings
        return heat_maps(
            maps,
            columns=(columns.name, columns.values),
            rows=(rows.name, rows.values),
            title=f"{self.recipe.name}: test {self.recipe.task.metric},"
            f" epsilon {settings.epsilon:g}, {counted(settings.epochs, 'epoch')}",
            scale=self._scale,
        )

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
        table = Table(title=f"{name}: test {self.recipe.task.metric}")
        table.add_column(f"{rows.name} \\ {columns.name}" if rows.name else columns.name)
        for value in columns.values:
            table.add_column(f"{value:g}", justify="right")
        for row in rows.values:
            cells = (f"{found[self._key(x, row)] * self._scale:.2f}" for x in columns.values)
            table.add_row(f"{row:g}" if rows.name else "", *cells)
        return table

    def _tuning(self) -> dict[str, Any] | None:
        """What releasing the best of a random search of this size costs, if it is known."""
        settings = self.recipe.settings
        private = [trial for trial in self.trials if trial.noise_multiplier is not None]
        runs = sum(len(found) for found in self.scores.values())
        if settings.sampling != "poisson" or settings.adjacency not in (None, "add-remove-one"):
            return None
        weakest = min(private, key=lambda trial: trial.noise_multiplier or 0.0)
        assert weakest.noise_multiplier is not None
        search = accounting.tuned(
            mean_runs=runs,
            delta=settings.delta,
            noise_multiplier=weakest.noise_multiplier,
            steps=weakest.steps,
            sample_rate=weakest.sample_rate,
        )
        return asdict(search)

    def _cost(self) -> list[str]:
        tuning = self._tuning()
        best = max(((v, name) for name, found in self.scores.items() for v in found.values()))
        lines = [
            f"Best: {best[0] * self._scale:.2f} ({best[1]}). These runs are seeded and protect"
            " nobody."
        ]
        if tuning is None:
            return [*lines, "What releasing the best of a search costs is not known here."]
        return [
            *lines,
            f"On private data, releasing only the best of a random search with"
            f" {tuning['mean_runs']:g} runs on average spends epsilon {printed(tuning['epsilon'])},"
            f" not {printed(tuning['single_run_epsilon'])} (one run, by the same accountant), and"
            " only if their number is drawn as `quietgrad tune-cost` says.",
        ]
