"""`quietgrad train RECIPE`: train privately, keep the run in a folder, and report on it."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from torch import nn

from quietgrad.cli.common import Folder, Refusal, Stopped, plain_warnings, refusals
from quietgrad.cli.progress import live
from quietgrad.cli.recipe_options import (
    Request,
    RequestedOptions,
    place_options,
    prepare,
    recipe_argument,
    recipe_options,
)
from quietgrad.cli.summary import TrainingSummary
from quietgrad.data.sources import noted_places
from quietgrad.engine.engine import PrivacyEngine
from quietgrad.errors import LedgerError
from quietgrad.recipes.recipe import Places, Split
from quietgrad.recipes.training import (
    EpochReport,
    OnEpoch,
    OnStep,
    attach,
    train_ordinary,
    train_private,
)
from quietgrad.report.html import write_for_folder
from quietgrad.runs.folder import Checkpointer, EventWriter
from quietgrad.runs.resume import kept_fingerprint, saved_on_interrupt
from quietgrad.runs.schema import RunFolderError

_WAITING = b"\nStopping after this step, to save it; Ctrl-C again stops at once.\n"


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on.

    Attributes:
        split: the data.
        places: where they were found.
        fingerprint: by which the checkpoint knows them again.
    """

    split: Split
    places: list[str]
    fingerprint: Mapping[str, Any]


def loaded(request: Request) -> TrainingData:
    """The data of a run.

    Raises:
        RunFolderError: it was begun with others.
    """
    with noted_places() as places:
        split = request.recipe.split(request.places)
    begun = places if request.config is not None else request.folder.config.get("data", places)
    if begun != places:
        raise RunFolderError(
            f"the run in {request.folder.path} was begun with the data of"
            f" {_listed(begun)}, and now there is {_listed(places)}: a guarantee is about one data"
            " set. See $QUIETGRAD_DATA, or begin in another folder"
        )
    return TrainingData(split, places, kept_fingerprint(request.state, split.train))


def attached(request: Request, data: TrainingData, model: nn.Module) -> PrivacyEngine:
    """An engine that records in the run's folder, where the run left off."""
    folder, is_new = request.folder, request.config is not None
    ledger = None if is_new else folder.ledger
    engine = attach(request.recipe, data.split, model, seed=request.seed, ledger=ledger)
    if request.config is not None:
        # Only now: what is refused leaves no folder behind that would have to be cleared away.
        folder.begin({**request.config, "data": data.places})
        engine.ledger.keep_in(folder.ledger)
    folder.remove_unfinished()  # nobody else writes here: the ledger is locked by now
    if request.state is not None:
        engine.load_state_dict(request.state)
    _ = engine.noise_multiplier  # refuses a target that what the ledger holds already exceeds
    folder.describe(engine.settings())
    return engine


@contextmanager
def saving(request: Request, engine: PrivacyEngine, data: TrainingData) -> Iterator[OnStep]:
    """Keep the run in its folder, step by step."""
    checkpointer = Checkpointer(request.folder, engine, data.fingerprint)
    try:
        checkpointer.save()
        with saved_on_interrupt(checkpointer, on_wait=_tell) as stop_if_asked:

            def on_step() -> None:
                stop_if_asked()
                checkpointer.save_if_due()

            yield on_step
        checkpointer.save()
    finally:
        engine.ledger.close()


@contextmanager
def able_to_go_on(request: Request, *flags: str) -> Iterator[None]:
    """Ctrl-C and a full disk are no errors of the program: say in one line how the run goes on.

    Args:
        request: of the run.
        flags: with which to go on.
    """
    place = shlex.quote(str(request.folder.path))
    again = " ".join(["quietgrad train", request.recipe.name, "--out", place, "--resume", *flags])
    try:
        yield
    except KeyboardInterrupt:
        if not request.folder.has_run:
            raise
        raise Stopped(f"stopped. Go on with: {again}") from None
    except (LedgerError, RunFolderError) as error:
        raise Refusal(f"{error}. To go on: {again}") from error


def _listed(places: object) -> str:
    return ", ".join(map(str, places)) if isinstance(places, list) and places else "no folder"


def _tell() -> None:
    """Past Python's buffers, in which the signal may have come."""
    with suppress(OSError):
        os.write(2, _WAITING)


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
        asked = RequestedOptions(recipe, given, Places(data_dir, model_dir), smoke, seed)
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


def _result(comparison: TrainingSummary, split: Split, request: Request) -> dict[str, Any]:
    result = comparison.as_dict()
    result |= {"test_records": _size(split.test), "ledger_id": comparison.engine.ledger.id}
    if result["non_private"] is None:
        # A model that was trained without privacy stays one that was.
        result["non_private"] = (request.folder.result or {}).get("non_private")
    return result


def _compared(
    request: Request, console: Console, *, baseline: bool, tensorboard: bool
) -> tuple[TrainingSummary, Split]:
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
    return TrainingSummary(recipe, request.seed, engine, private, ordinary), split


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
