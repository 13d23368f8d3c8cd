"""`quietgrad train RECIPE`: train privately, keep the run in a folder, and report on it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from torch import nn

from quietgrad.cli.failures import Stopped, refusals
from quietgrad.cli.live import live
from quietgrad.cli.recipe_options import place_options, recipe_argument, recipe_options
from quietgrad.cli.request import Asked, Request, prepare
from quietgrad.cli.summary import Comparison
from quietgrad.engine import PrivacyEngine
from quietgrad.recipes import Places, Split
from quietgrad.recipes.training import (
    EpochReport,
    OnEpoch,
    OnStep,
    attach,
    train_ordinary,
    train_private,
)
from quietgrad.report import write_for_folder
from quietgrad.runs import Checkpointer
from quietgrad.runs.events import EventWriter


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_argument
@recipe_options
@place_options
@click.option("--seed", type=int, help="Reproducible, and therefore NOT private: tests only.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
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
        console.print(note)
    comparison = _compared(request, console, baseline=baseline, tensorboard=tensorboard)
    result = comparison.as_dict()
    if result["non_private"] is None:
        # A model that was trained without privacy stays one that was.
        result["non_private"] = (request.folder.result or {}).get("non_private")
    result = request.folder.finish(result)
    report = write_for_folder(request.folder.path)
    if as_json:
        found = {**result, "folder": str(request.folder.path), "report": str(report)}
        click.echo(json.dumps(found, indent=2))
        return
    console.print(comparison.as_table())
    for remark in comparison.remarks():
        console.print(remark)
    console.print(f"Kept in {request.folder.path}", highlight=False, soft_wrap=True)
    console.print(f"Privacy report: {report}", highlight=False, soft_wrap=True)


def _compared(
    request: Request, console: Console, *, baseline: bool, tensorboard: bool
) -> Comparison:
    recipe = request.recipe
    with refusals():
        events = EventWriter(request.folder.path / "events") if tensorboard else None
        split = recipe.split(request.places)
        model = _initial_model(request)
        engine = _attached(request, split, model)
    with (
        live(console, "private", recipe, engine.planned_steps, engine.steps_taken) as shown,
        _saving(request, engine) as on_step,
    ):
        private = train_private(
            recipe,
            split,
            model,
            engine,
            on_epoch=_telling(shown.on_epoch, request.folder.add_metrics, events),
            on_step=_both(on_step, shown.on_step),
            seconds=request.folder.keep_metrics_until(engine.epochs_completed),
        )
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
    return Comparison(recipe, request.seed, engine, private, ordinary)


def _attached(request: Request, split: Split, model: nn.Module) -> PrivacyEngine:
    folder, is_new = request.folder, request.config is not None
    ledger = None if is_new else folder.ledger
    engine = attach(request.recipe, split, model, seed=request.seed, ledger=ledger)
    if request.config is not None:
        # Only now: what is refused leaves no folder behind that would have to be cleared away.
        folder.begin(request.config)
        engine.ledger.keep_in(folder.ledger)
    if request.state is not None:
        engine.load_state_dict(request.state)
    _ = engine.noise_multiplier  # refuses a target that what the ledger holds already exceeds
    folder.describe(engine.settings())
    return engine


@contextmanager
def _saving(request: Request, engine: PrivacyEngine) -> Iterator[OnStep]:
    """Keep the run in its folder; then Ctrl-C is no error, for it can go on."""
    checkpointer = Checkpointer(request.folder, engine)
    try:
        checkpointer.save()
        yield checkpointer.save_if_due
        checkpointer.save()
    except KeyboardInterrupt:
        again = f"quietgrad train {request.recipe.name} --out {request.folder.path} --resume"
        raise Stopped(f"stopped. Go on with: {again}") from None
    finally:
        engine.ledger.close()


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
