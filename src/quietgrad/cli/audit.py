"""`quietgrad audit RECIPE`: is training as private as it says?"""

import json
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from quietgrad import audit as audits
from quietgrad._format import json_number, printed
from quietgrad.audit.game import Train
from quietgrad.audit.result import AuditResult, described
from quietgrad.cli.common import refusals, require_drawable, write_figure
from quietgrad.cli.recipe_options import (
    RequestedOptions,
    place_options,
    recipe_argument,
    recipe_options,
)
from quietgrad.plots.runs import audit_figure
from quietgrad.recipes.recipe import Places, Recipe, Split
from quietgrad.recipes.training import losses_of, optimizer

_GUESSES = {
    "gradient": "each canary's entry of the released gradients, added up over all steps",
    "example": "how much each canary's loss fell from the initial to the final model",
}


@dataclass(frozen=True)
class AuditReport:
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


def write_plot(file: Path, report: AuditReport) -> None:
    """Draw, and write the file."""
    title = f"{report.recipe.name}, {report.result.canaries:,} {report.kind} canaries"
    write_figure(audit_figure(report.result, title=title, score=scored_by(report.kind)), file)


Kind = Literal["gradient", "example"]
_CANARIES = 1000


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_argument
@recipe_options
@place_options
@click.option(
    "--kind",
    type=click.Choice(["gradient", "example"]),
    default="gradient",
    show_default=True,
    help="Canaries in the gradient, watched at every step, or mislabeled examples, asked at last.",
)
@click.option(
    "--canaries",
    type=int,
    help=f"How many. Default: {_CANARIES}, or all held-out examples.",
)
@click.option("--guesses", type=int, help="By rank, in each run. Default: a fifth of the canaries.")
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    help="Probability with which the bound holds.",
)
@click.option("--runs", type=int, default=1, show_default=True, help="How often to train.")
@click.option("--seed", type=int, help="Reproducible coins and noise: tests only.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also draw claim, bounds and scores, to a .png, .svg or .pdf file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def audit(
    recipe: str,
    kind: Kind,
    canaries: int | None,
    guesses: int | None,
    confidence: float,
    runs: int,
    seed: int | None,
    plot: Path | None,
    as_json: bool,
    data_dir: Path | None,
    model_dir: Path | None,
    smoke: bool,
    **overrides: Any,
) -> None:
    """Test with canaries whether RECIPE is as private as it claims.

    Trains with canaries that coins put in or leave out, guesses the coins from what training
    releases, and prints the epsilon that takes. Exits with 1 if that is above the claim.
    """
    console = Console(quiet=as_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    with refusals():
        if plot is not None:
            require_drawable(plot)
        places = Places(data_dir, model_dir)
        chosen = RequestedOptions(recipe, given, places, smoke, seed).resolved()
        if chosen.settings.inner_steps is not None:
            raise ValueError("--inner-steps: audits do not know inner momentum. Leave it out")
        split = chosen.split(places)
        count = _default_canaries(kind, split) if canaries is None else canaries
        with _progress(console, chosen.settings.epochs * runs) as on_epoch:
            result = audits.one_run(
                _train(kind, chosen, places, split, count, seed, on_epoch),
                canaries=count,
                guesses=guesses,
                confidence=confidence,
                runs=runs,
                seed=seed,
            )
    report = AuditReport(chosen, kind, seed, result)
    if plot is not None:
        write_plot(plot, report)
        click.echo(f"Plot written to {plot}", err=True)
    _show(report, console, as_json=as_json)
    click.get_current_context().exit(1 if result.violated else 0)


def _show(report: AuditReport, console: Console, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.as_dict(), indent=2, allow_nan=False))
        return
    console.print(report.as_table())
    for sentence in report.verdict():
        console.print(sentence)


def _train(
    kind: Kind,
    recipe: Recipe,
    places: Places,
    split: Split,
    canaries: int,
    seed: int | None,
    on_epoch: Callable[[int], None],
) -> Train:
    parts: dict[str, Any] = {
        "build_model": lambda: recipe.build_model(places),
        "dataset": split.train,
        "losses": losses_of(recipe),
        "build_optimizer": lambda model: optimizer(recipe.settings, model),
        "on_epoch": on_epoch,
        **recipe.settings.engine_options,
    }
    if kind == "gradient":
        return audits.gradient_canaries(**parts)
    examples = audits.mislabeled(split.test, canaries, classes=_classes(split), seed=seed)
    return audits.example_canaries(examples=examples, **parts)


def _default_canaries(kind: Kind, split: Split) -> int:
    return _CANARIES if kind == "gradient" else len(cast(Sized, split.test))


def _classes(split: Split) -> int:
    return 1 + max(int(split.test[i][-1]) for i in range(len(cast(Sized, split.test))))


@contextmanager
def _progress(console: Console, epochs: int) -> Iterator[Callable[[int], None]]:
    """A bar in a terminal, and nothing anywhere else."""
    if console.quiet or not console.is_terminal:
        yield lambda epoch: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("training with canaries", total=epochs)
        yield lambda epoch: bar.advance(task)
