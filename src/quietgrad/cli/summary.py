"""What a finished comparison says, as a JSON object and as a table."""

from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from quietgrad.engine import PrivacyEngine
from quietgrad.recipes.recipe import Recipe
from quietgrad.recipes.training import Outcome

ACCOUNTANT = "PLD"


@dataclass(frozen=True)
class Comparison:
    """One recipe trained twice from the same initial weights."""

    recipe: Recipe
    seed: int | None
    engine: PrivacyEngine
    private: Outcome
    ordinary: Outcome

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        recipe, engine = self.recipe, self.engine
        return {
            "recipe": recipe.name,
            "seed": self.seed,
            "epochs": recipe.epochs,
            "batch_size": recipe.batch_size,
            "learning_rate": recipe.learning_rate,
            "clipping": recipe.clipping,
            "grouping": recipe.grouping,
            "private": asdict(self.private)
            | {
                "epsilon": engine.epsilon(),
                "target_epsilon": recipe.epsilon,
                "delta": recipe.delta,
                "noise_multiplier": engine.noise_multiplier,
                "accountant": ACCOUNTANT,
                "sample_rate": engine.sample_rate,
                "groups": len(engine.groups),
                "sensitivity": engine.sensitivity,
            },
            "non_private": asdict(self.ordinary),
        }

    def as_table(self) -> Table:
        """The same for people."""
        table = Table(title=f"{self.recipe.name}: private and non-private training")
        table.add_column("")
        table.add_column("private", justify="right")
        table.add_column("non-private", justify="right")
        for name, private, ordinary in self._rows():
            table.add_row(name, private, ordinary)
        return table

    def _rows(self) -> list[tuple[str, str, str]]:
        recipe, engine, private, ordinary = self.recipe, self.engine, self.private, self.ordinary
        return [
            ("test accuracy", f"{private.test_accuracy:.1%}", f"{ordinary.test_accuracy:.1%}"),
            ("training time", f"{private.seconds:.1f} s", f"{ordinary.seconds:.1f} s"),
            ("steps", str(private.steps), str(ordinary.steps)),
            ("epsilon spent", f"{engine.epsilon():.3f} of {recipe.epsilon:g}", "no bound"),
            ("delta", f"{recipe.delta:g}", ""),
            ("noise multiplier", f"{engine.noise_multiplier:.3f} (by {ACCOUNTANT})", ""),
            ("clipping", recipe.clipping, ""),
            ("grouping", f"{recipe.grouping} ({_count(len(engine.groups), 'group')})", ""),
            ("sensitivity", f"{engine.sensitivity:g}", ""),
        ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
