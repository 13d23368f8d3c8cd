"""`quietgrad train RECIPE`: train privately, keep the run in a folder, and report on it."""

import json
from collections.abc import Sized
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from torch import nn

from quietgrad.cli.failures import plain_warnings, refusals
from quietgrad.cli.kept_run import able_to_go_on, attached, loaded, saving
from quietgrad.cli.live import live
from quietgrad.cli.paths import Folder
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.request import Asked, Request, prepare
from quietgrad.cli.summary import Comparison
from quietgrad.recipes import Places, Split
from quietgrad.recipes.training import (
    EpochReport,
    OnEpoch,
    OnStep,
    train_ordinary,
    train_private,
)
from quietgrad.report import write_for_folder
from quietgrad.runs.events import EventWriter

_LARGEST_SEED = 2**63 - 1  # that torch's generators take


def _in_range(context: click.Context, option: click.Parameter, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= _LARGEST_SEED:
        raise click.BadParameter(f"{value}: expected 0 to {_LARGEST_SEED}")
    return value


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_argument
@recipe_options
@place_options
@click.option(
    "--seed",
    type=int,
    callback=_in_range,
    help="Reproducible, and therefore NOT private: tests only.",
)
@click.option(
    "--out",
    type=Folder(),
    help="Folder for the run. Default: runs/RECIPE-1, or the next number that is free.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, if there is one.")
@click.option(
    "--baseline/--no-baseline", default=False, help="Also train without privacy, to compare."
)
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard events into the folder.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def train(
    recipe: str,
    seed: int | None,
    out: Path | None,
    resume: bool,
    baseline: bool,
    tensorboard: bool,
    as_json: bool,
    data_dir: Path | None,
    model_dir: Path | None,
    smoke: bool,
    **overrides: Any,
) -> None:
    """Train RECIPE with differential privacy.

    The run is kept in a folder: config.json, settings.json, ledger.jsonl, checkpoint.pt,
    metrics.jsonl, model.safetensors, result.json and report.html.
    """
    console = Console(quiet=as_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    with refusals():
        asked = Asked(recipe, given, Places(data_dir, model_dir), smoke, seed)
        request = prepare(asked, out=out, resume=resume)
    for note in request.notes:
        console.print(note, markup=False, soft_wrap=True)
    extras = {"--baseline": baseline, "--tensorboard": tensorboard}
    with able_to_go_on(request, *(name for name, wanted in extras.items() if wanted)):
        comparison, split = _compared(request, console, baseline=baseline, tensorboard=tensorboard)
        result = request.folder.finish(_result(comparison, split, request))
        with refusals():
            report = write_for_folder(request.folder.path)
    if as_json:
        found = {**result, "folder": str(request.folder.path), "report": str(report)}
        click.echo(json.dumps(found, indent=2))
        return
    console.print(comparison.as_table())
    for remark in comparison.remarks():
        console.print(remark, markup=False)
    for line in (f"Kept in {request.folder.path}", f"Privacy report: {report}"):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _result(comparison: Comparison, split: Split, request: Request) -> dict[str, Any]:
    result = comparison.as_dict()
    result |= {"test_records": _size(split.test), "ledger_id": comparison.engine.ledger.id}
    if result["non_private"] is None:
        # A model that was trained without privacy stays one that was.
        result["non_private"] = (request.folder.result or {}).get("non_private")
    return result


def _compared(
    request: Request, console: Console, *, baseline: bool, tensorboard: bool
) -> tuple[Comparison, Split]:
    recipe = request.recipe
    with refusals():
        events = EventWriter(request.folder.path / "events") if tensorboard else None
        data = loaded(request)
        split, model = data.split, _initial_model(request)
        engine = attached(request, data, model)
    with (
        plain_warnings(),
        live(console, "private", recipe, engine.planned_steps, engine.steps_taken) as shown,
        saving(request, engine, data) as on_step,
    ):
        private = train_private(
            recipe,
            split,
            model,
            engine,
            on_epoch=_telling(shown.on_epoch, request.folder.metrics.add, events),
            on_step=_both(on_step, shown.on_step),
            seconds=request.folder.metrics.keep_until(engine.epochs_completed),
        )
    request.folder.describe(engine.settings())  # with what it came to
    request.folder.save_model(model)
    ordinary = None
    if baseline:
        steps = recipe.settings.epochs * engine.steps_per_epoch
        with live(console, "non-private", recipe, steps, 0) as shown:
            twin = _initial_model(request)
            ordinary = train_ordinary(
                recipe,
                split,
                twin,
                seed=request.seed,
                on_epoch=shown.on_epoch,
                on_step=shown.on_step,
            )
    return Comparison(recipe, request.seed, engine, private, ordinary), split


def _size(data: object) -> int | None:
    return len(data) if isinstance(data, Sized) else None


def _initial_model(request: Request) -> nn.Module:
    """The same weights every time, also when the run is resumed; they hold nothing private."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.initial_seed)
        return request.recipe.build_model(request.places)


def _both(*functions: OnStep) -> OnStep:
    def call() -> None:
        for function in functions:
            function()

    return call


def _telling(shown: OnEpoch, keep: Any, events: EventWriter | None) -> OnEpoch:
    def on_epoch(report: EpochReport) -> None:
        keep(report.as_dict())
        if events is not None:
            events.add(report.as_dict())
        shown(report)

    return on_epoch
