"""`quietgrad audit RECIPE`: is training as private as it says?"""

from collections.abc import Callable, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import click
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from quietgrad._format import json_number, printed
from quietgrad._progress import announced
from quietgrad.audit.canaries import example_canaries, gradient_canaries, mislabeled
from quietgrad.audit.game import Train, one_run
from quietgrad.audit.result import AuditResult, describe
from quietgrad.cli.common import (
    plot_option,
    print_result,
    refusals,
    require_drawable,
    write_figure,
)
from quietgrad.cli.options import json_option
from quietgrad.cli.progress import Display
from quietgrad.cli.recipe_options import RequestedOptions, errors_of_recipe, recipe_options
from quietgrad.plots.runs import audit_figure
from quietgrad.recipes.recipe import Recipe, Split, on_device_of
from quietgrad.recipes.training import losses_of, optimizer

Kind = Literal["gradient", "example"]
_SCORES = {
    "gradient": "each canary's entry of the released gradients, added up over all steps",
    "example": "how much each canary's loss fell from the initial to the final model",
}
_CANARIES = 1000


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_options
@click.option(
    "--kind",
    type=click.Choice(["gradient", "example"]),
    default="gradient",
    show_default=True,
    help="Canaries in the gradient, observed at every step, or mislabeled examples, whose losses"
    " are compared before and after training.",
)
@click.option(
    "--canaries",
    type=int,
    help=f"Number of canaries. Default: {_CANARIES}, or all held-out examples.",
)
@click.option(
    "--guesses",
    type=int,
    help="Number of guesses in each run, by rank. Default: a fifth of the canaries.",
)
@click.option(
    "--confidence",
    type=float,
    default=0.95,
    show_default=True,
    help="Probability with which the lower bound holds.",
)
@click.option("--runs", type=int, default=1, show_default=True, help="Number of trainings.")
@click.option("--seed", type=int, help="Make coins and noise reproducible: for tests only.")
@plot_option("claim, bounds and scores")
@json_option
def audit(
    asked: RequestedOptions,
    kind: Kind,
    canaries: int | None,
    guesses: int | None,
    confidence: float,
    runs: int,
    seed: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Test with canaries whether RECIPE is as private as it claims.

    The command trains with canaries that coin flips include or leave out, and guesses the flips
    from what training releases. It prints the lower bound on epsilon that the correct guesses
    imply. The exit code is 1 if the claim is violated.
    """
    with refusals():
        if plot is not None:
            require_drawable(plot)
        chosen = asked.resolved()
        if chosen.settings.inner_steps is not None:
            raise ValueError("--inner-steps: audits do not support inner momentum. Leave it out")
        if chosen.unit is not None:
            raise ValueError(
                f"{chosen.name} protects each {chosen.unit} with all records, and an audit plants"
                " single ones: it would test another claim. Audit a recipe without units"
            )
        with errors_of_recipe(chosen), announced("Loading the data"):
            split = chosen.split(asked.places)
        held_out = len(cast(Sized, split.test))
        if canaries is None:
            canaries = _CANARIES if kind == "gradient" else held_out
        display = Display(
            Console(quiet=as_json), "training with canaries", total=chosen.settings.epochs * runs
        )
        with display, errors_of_recipe(chosen):
            result = one_run(
                _train(kind, chosen, asked, split, canaries, seed, display),
                canaries=canaries,
                guesses=guesses,
                confidence=confidence,
                runs=runs,
                seed=seed,
            )
    if plot is not None:
        title = f"{chosen.name}, {result.canaries:,} {kind} canaries"
        write_figure(audit_figure(result, title=title, score=_SCORES[kind]), plot)

    def show(console: Console) -> None:
        table = Table(title=f"{chosen.name}: audit with {kind} canaries")
        table.add_column("")
        table.add_column("", justify="right")
        # A lower bound is rounded to the nearest, an upper bound up.
        for row in describe(result, partial(printed, up=False), upper=printed):
            table.add_row(*row)
        console.print(table)
        for sentence in _verdict(result):
            console.print(sentence)

    print_result(_as_dict(chosen, kind, seed, result), show, as_json=as_json)
    click.get_current_context().exit(1 if result.violated else 0)


def _train(
    kind: Kind,
    recipe: Recipe,
    asked: RequestedOptions,
    split: Split,
    canaries: int,
    seed: int | None,
    display: Display,
) -> Train:
    parts: dict[str, Any] = {
        "build_model": lambda: recipe.model(asked.places).to(asked.device),
        "dataset": split.train,
        "losses": _losses_on_device(recipe),
        "build_optimizer": lambda model: optimizer(recipe.settings, model),
        "on_epoch": display.on_part,
        **recipe.settings.engine_options,
    }
    if kind == "gradient":
        return gradient_canaries(**parts)
    classes = 1 + max(int(split.test[i][-1]) for i in range(len(cast(Sized, split.test))))
    examples = mislabeled(split.test, canaries, classes=classes, seed=seed)
    return example_canaries(examples=examples, **parts)


def _losses_on_device(recipe: Recipe) -> Callable[[nn.Module, Sequence[Tensor]], Tensor]:
    losses = losses_of(recipe)
    return lambda model, batch: losses(model, on_device_of(model, batch))


def _as_dict(recipe: Recipe, kind: str, seed: int | None, result: AuditResult) -> dict[str, Any]:
    found = result.as_dict()
    return {
        "recipe": recipe.name,
        "kind": kind,
        "seed": seed,
        "target_epsilon": recipe.settings.epsilon,
        **found,
        "claimed_epsilon": json_number(found["claimed_epsilon"]),
        "lower_bound": json_number(found["lower_bound"]),
        "bounds": {name: json_number(value) for name, value in found["bounds"].items()},
    }


def _verdict(found: AuditResult) -> list[str]:
    """What the result means, and what it does not."""
    if not found.could_reject:
        return [
            f"NOT TESTED: {found.canaries:,} canaries cannot refute this claim, even if every"
            f" guess is right (p = {found.least_p_value:.2g}). Use more canaries."
        ]
    if not found.violated:
        return [
            "Not violated: guesses this good are likely enough if the claim holds"
            f" (p = {found.p_value:.2g}).",
            "A lower bound is evidence, not a proof of safety: other canaries may find more.",
        ]
    return [
        "VIOLATED: if the claim held, guesses this good would have a probability of"
        f" {found.p_value:.2g}.",
        "Correct training raises such an alarm with a probability of at most"
        f" 1 - {found.confidence:.4g}. Run the audit again: two alarms in a row are no accident.",
    ]
