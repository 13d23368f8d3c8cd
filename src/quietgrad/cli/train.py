"""`quietgrad train RECIPE`: train privately, then the same model ordinarily, and compare."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console
from torch import nn

from quietgrad import recipes
from quietgrad.cli.failures import Stopped, refusals
from quietgrad.cli.live import live
from quietgrad.cli.recipe_options import recipe_options
from quietgrad.cli.request import Request, prepare
from quietgrad.cli.summary import Comparison
from quietgrad.engine import PrivacyEngine
from quietgrad.recipes import Split
from quietgrad.recipes.training import OnStep, attach, train_ordinary, train_private
from quietgrad.runs import Checkpointer


@click.command(epilog=f"Recipes: {', '.join(recipes.names())}.")
@click.argument("recipe", metavar="RECIPE")
@recipe_options
@click.option("--seed", type=int, help="Reproducible, and therefore NOT private: tests only.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the run: configuration, ledger, checkpoints.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, if there is one.")
@click.option(
    "--baseline/--no-baseline", default=True, help="Also train without privacy, to compare."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
def train(
    recipe: str,
    seed: int | None,
    out: Path | None,
    resume: bool,
    baseline: bool,
    as_json: bool,
    **overrides: Any,
) -> None:
    """Train RECIPE with differential privacy, and without for comparison."""
    console = Console(quiet=as_json)
    given = {name: value for name, value in overrides.items() if value is not None}
    with refusals():
        request = prepare(recipe, given, seed=seed, out=out, resume=resume)
    for note in request.notes:
        console.print(note)
    comparison = _compare(request, console, baseline=baseline)
    if request.folder is not None:
        request.folder.finish(comparison.as_dict())
    if as_json:
        click.echo(json.dumps(comparison.as_dict(), indent=2))
        return
    console.print(comparison.as_table())
    for remark in comparison.remarks():
        console.print(remark)


def _compare(request: Request, console: Console, *, baseline: bool) -> Comparison:
    recipe = request.recipe
    with refusals():
        split = recipe.load_data()
        model = _initial_model(request)
        engine = _attached(request, split, model)
    with live(console, "private", recipe.epochs) as on_epoch, _saving(request, engine) as on_step:
        private = train_private(recipe, split, model, engine, on_epoch=on_epoch, on_step=on_step)
    ordinary = None
    if baseline:
        with live(console, "non-private", recipe.epochs) as on_epoch:
            twin = _initial_model(request)
            ordinary = train_ordinary(recipe, split, twin, seed=request.seed, on_epoch=on_epoch)
    return Comparison(recipe, request.seed, engine, private, ordinary)


def _attached(request: Request, split: Split, model: nn.Module) -> PrivacyEngine:
    folder, is_new = request.folder, request.config is not None
    ledger = None if folder is None or is_new else folder.ledger
    engine = attach(request.recipe, split, model, seed=request.seed, ledger=ledger)
    if folder is not None and request.config is not None:
        # Only now: what is refused leaves no folder behind that would have to be cleared away.
        folder.begin(request.config)
        engine.ledger.keep_in(folder.ledger)
    if request.state is not None:
        engine.load_state_dict(request.state)
    _ = engine.noise_multiplier  # refuses a target that what the ledger holds already exceeds
    return engine


@contextmanager
def _saving(request: Request, engine: PrivacyEngine) -> Iterator[OnStep]:
    """Keep the run in its folder, if it has one; then Ctrl-C is no error, for it can go on."""
    if request.folder is None:
        yield lambda: None
        return
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
        return request.recipe.build_model()
