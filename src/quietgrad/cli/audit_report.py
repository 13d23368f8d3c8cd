"""What an audit says, as a JSON object, as a table, and in words."""

from dataclasses import dataclass
from typing import Any

from rich.table import Table

from quietgrad.audit import AuditResult
from quietgrad.audit.wording import described
from quietgrad.cli.rounding import json_number, printed
from quietgrad.recipes import Recipe

_GUESSES = {
    "gradient": "each canary's entry of the released gradients, added up over all steps",
    "example": "how much each canary's loss fell from the initial to the final model",
}


@dataclass(frozen=True)
class Report:
    """One recipe, audited."""

    recipe: Recipe
    kind: str
    seed: int | None
    result: AuditResult

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        found = self.result.as_dict()
        bounds = {name: json_number(value) for name, value in found["bounds"].items()}
        return {
            "recipe": self.recipe.name,
            "kind": self.kind,
            "seed": self.seed,
            "target_epsilon": self.recipe.settings.epsilon,
            **found,
            "claimed_epsilon": json_number(found["claimed_epsilon"]),
            "lower_bound": json_number(found["lower_bound"]),
            "bounds": bounds,
        }

    def as_table(self) -> Table:
        """The same for people; lower bounds are rounded to the nearest."""
        table = Table(title=f"{self.recipe.name}: audit with {self.kind} canaries")
        table.add_column("")
        table.add_column("", justify="right")
        for name, value in described(self.result, _lower, upper=printed):
            table.add_row(name, value)
        return table

    def verdict(self) -> list[str]:
        """What it means, and what it does not."""
        found, percent = self.result, f"{self.result.confidence:.4g}"
        if not found.could_reject:
            return [
                f"NOT TESTED: {found.canaries:,} canaries cannot refute this claim, even if every"
                f" guess is right (p = {found.least_p_value:.2g}). Take more canaries."
            ]
        if not found.violated:
            return [
                f"Not violated: guesses this good are no surprise if the claim holds"
                f" (p = {found.p_value:.2g}).",
                "A lower bound is evidence, no proof of safety: it is what these canaries found.",
            ]
        return [
            f"VIOLATED: if the claim held, guesses this good had a probability of"
            f" {found.p_value:.2g}.",
            f"Correct training raises such an alarm with probability 1 - {percent} at most. Run it"
            " again: two alarms in a row are no accident.",
        ]


def scored_by(kind: str) -> str:
    """What a score is."""
    return _GUESSES[kind]


def _lower(value: float) -> str:
    return printed(value, up=False)
