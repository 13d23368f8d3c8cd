"""What a finished comparison says, as a JSON object and as a table."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from quietgrad import accounting
from quietgrad._format import printed
from quietgrad.accounting import accountants
from quietgrad.cli.common import counted, score, title
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.recipes.recipe import Recipe
from quietgrad.recipes.training import Outcome

_NONE = ""


@dataclass(frozen=True)
class TrainingSummary:
    """One recipe trained privately and, to compare, ordinarily from the same initial weights."""

    recipe: Recipe
    seed: int | None
    engine: PrivacyEngine
    private: Outcome
    ordinary: Outcome | None

    @property
    def lost_steps(self) -> int:
        """Steps that are in the ledger and not in the weights: interruptions undid them."""
        return self.engine.ledger.steps - self.private.steps

    @property
    def epsilon_if_poisson(self) -> float | None:
        """What is often reported for batches that were not drawn by Poisson sampling."""
        events = self.engine.ledger.events
        assumed = accounting.as_if_poisson(events)
        if list(events) == assumed:
            return None
        return accounting.profile(
            assumed,
            accountant=self.recipe.settings.accountant,
            adjacency=self.engine.ledger.adjacency,
        ).epsilon(self.recipe.settings.delta)

    @property
    def _guaranteed_epsilon(self) -> float:
        return self.engine.ledger.epsilon(self.recipe.settings.delta, accountant="pld")

    @property
    def _is_guarantee(self) -> bool:
        return accountants.resolve(self.recipe.settings.accountant).is_guarantee

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        settings, engine = self.recipe.settings, self.engine
        return {
            "recipe": self.recipe.name,
            "seed": self.seed,
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "learning_rate": settings.learning_rate,
            "clipping": settings.clipping,
            "grouping": settings.grouping,
            "private": self.private.as_dict()
            | {
                "epsilon": engine.epsilon(),
                "target_epsilon": settings.epsilon,
                "delta": settings.delta,
                "noise_multiplier": engine.noise_multiplier,
                "accountant": settings.accountant,
                "is_guarantee": self._is_guarantee and self.seed is None,
                "adjacency": engine.ledger.adjacency,
                "sampling": settings.sampling,
                "noise": engine.noise,
                "sample_rate": engine.sample_rate,
                "ledger_steps": engine.ledger.steps,
                "lost_steps": self.lost_steps,
                "epsilon_if_poisson_does_not_hold": self.epsilon_if_poisson,
                "groups": len(engine.groups),
                "sensitivity": engine.sensitivity,
            },
            "non_private": None if self.ordinary is None else self.ordinary.as_dict(),
        }

    def as_table(self) -> Table:
        """The same for people."""
        compared = self.ordinary is not None
        kinds = "private and non-private training" if compared else "private training"
        table = Table(title=f"{self.recipe.name}: {kinds}")
        table.add_column("")
        table.add_column("private", justify="right")
        if compared:
            table.add_column("non-private", justify="right")
        for name, private, ordinary in self._rows():
            table.add_row(name, private, *([ordinary] if compared else []))
        return table

    def remarks(self) -> list[str]:
        """What must not be overlooked."""
        found = []
        if self.lost_steps:
            found.append(
                f"Recorded and then lost to interruptions: {counted(self.lost_steps, 'step')}. What"
                " is recorded counts as spent."
            )
        if not self._is_guarantee:
            found.append(
                f"This epsilon is by {self.recipe.settings.accountant}, an approximation and NOT a"
                f" guarantee. What holds is {printed(self._guaranteed_epsilon)}, by pld."
            )
        if self.epsilon_if_poisson is not None:
            found.append(
                f"Poisson sampling would have spent {printed(self.epsilon_if_poisson)}. That"
                " figure, though often reported for such batches, does not hold for them."
            )
        if self.seed is not None:
            found.append("Seeded: the noise can be recomputed, so this run protects nobody.")
        return found

    def _rows(self) -> list[tuple[str, str, str]]:
        settings, engine = self.recipe.settings, self.engine
        private, ordinary = self.private, self.ordinary
        spent = f"{printed(engine.epsilon(), up=self._is_guarantee)} of {settings.epsilon:g}"
        spent += "" if self._is_guarantee else " (NOT a guarantee)"
        groups = counted(len(engine.groups), "group")
        return [
            *(
                (
                    title(name),
                    score(name, value),
                    score(name, ordinary.scores[name]) if ordinary else _NONE,
                )
                for name, value in private.scores.items()
                if name != "test_loss"
            ),
            (
                "training time",
                f"{private.seconds:.1f} s",
                f"{ordinary.seconds:.1f} s" if ordinary else _NONE,
            ),
            ("steps", str(private.steps), str(ordinary.steps) if ordinary else _NONE),
            ("epsilon spent", spent, "no bound"),
            ("delta", f"{settings.delta:g}", _NONE),
            ("for", engine.ledger.adjacency, _NONE),
            ("sampling", settings.sampling, _NONE),
            ("noise", engine.noise, _NONE),
            (
                "noise multiplier",
                f"{engine.noise_multiplier:.3f} (by {settings.accountant})",
                _NONE,
            ),
            ("clipping", settings.clipping, _NONE),
            ("grouping", f"{settings.grouping} ({groups})", _NONE),
            ("sensitivity", f"{engine.sensitivity:g}", _NONE),
        ]
