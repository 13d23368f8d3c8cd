"""`quietgrad audit RECIPE`: is training as private as it says?"""

import json
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import click
from rich.console import Console
from rich.progress import Progress

from quietgrad import audit as audits
from quietgrad.audit import Train
from quietgrad.cli.audit_plot import write_plot
from quietgrad.cli.audit_report import Report
from quietgrad.cli.failures import refusals
from quietgrad.cli.picture import require_drawable
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.request import Asked
from quietgrad.recipes import Places, Recipe, Split
from quietgrad.recipes.training import losses_of, optimizer

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
        chosen = Asked(recipe, given, places, smoke, seed).resolved()
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
    report = Report(chosen, kind, seed, result)
    if plot is not None:
        write_plot(plot, report)
        click.echo(f"Plot written to {plot}", err=True)
    _show(report, console, as_json=as_json)
    click.get_current_context().exit(1 if result.violated else 0)


def _show(report: Report, console: Console, *, as_json: bool) -> None:
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
