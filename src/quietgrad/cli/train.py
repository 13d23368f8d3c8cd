"""`quietgrad train RECIPE`: train privately, keep the run in a folder, and report on it."""

from collections.abc import Sized
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from quietgrad._format import printed
from quietgrad.accounting.accountants import profile, resolve
from quietgrad.accounting.calibration import as_if_poisson
from quietgrad.cli.common import (
    counted,
    plain_warnings,
    print_json,
    refusals,
    say,
    score,
    title,
    titled,
    under_way,
)
from quietgrad.cli.options import json_option
from quietgrad.cli.progress import TrainingDisplay
from quietgrad.cli.ranks import (
    device_of_rank,
    joined_ranks,
    prepared_together,
    shard_by_block,
)
from quietgrad.cli.recipe_options import (
    Folder,
    RequestedOptions,
    errors_of_recipe,
    recipe_options,
)
from quietgrad.cli.request import (
    Request,
    attach_engine,
    checkpoints,
    load_data,
    prepare,
    resume_hint_on_interrupt,
)
from quietgrad.distributed.world import World
from quietgrad.recipes.recipe import Recipe, Split
from quietgrad.recipes.training import (
    EpochReport,
    Outcome,
    ordinary_steps,
    train_ordinary,
    train_private,
)
from quietgrad.report.assess import statement_of_folder
from quietgrad.report.page import default_place, require_not_worse, write
from quietgrad.runs.folder import EventWriter

if TYPE_CHECKING:
    from quietgrad.engine.engine import PrivacyEngine

_NOTE = (
    "Note the head elsewhere: quietgrad verify --head compares it with the report or the folder."
)
_LARGEST_SEED = 2**63 - 1  # that torch's generators take


def _in_range(context: click.Context, option: click.Parameter, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= _LARGEST_SEED:
        raise click.BadParameter(f"{value}: expected 0 to {_LARGEST_SEED}")
    return value


@click.command(epilog="Recipes: see `quietgrad recipes`.")
@recipe_options
@click.option(
    "--seed",
    type=int,
    callback=_in_range,
    help="Make the run reproducible, and therefore NOT private: for tests only.",
)
@click.option(
    "--out",
    type=Folder(),
    help="Folder for the run. Default: runs/RECIPE-1, or the next number that is free.",
)
@click.option("--resume", is_flag=True, help="Resume the run in --out, if there is one.")
@click.option(
    "--baseline/--no-baseline", default=False, help="Also train without privacy, to compare."
)
@click.option(
    "--sharded",
    is_flag=True,
    help="Spread the weights over the ranks that torchrun started, block by block (FSDP2).",
)
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard events into the folder.")
@json_option
def train(
    asked: RequestedOptions,
    seed: int | None,
    out: Path | None,
    resume: bool,
    baseline: bool,
    sharded: bool,
    tensorboard: bool,
    as_json: bool,
) -> None:
    """Train RECIPE with differential privacy.

    The run is kept in a folder: config.json, settings.json, ledger.jsonl, checkpoint.pt,
    metrics.jsonl, model.safetensors, result.json and report.html.
    """
    asked = replace(asked, seed=seed, device=device_of_rank(asked.device))
    with joined_ranks() as world, ExitStack() as stack:
        with refusals():
            together = prepared_together(world, partial(prepare, asked), out=out, resume=resume)
            request = stack.enter_context(together)
        shards = world if sharded else None
        if world.is_leader:
            flags = {"--baseline": baseline, "--tensorboard": tensorboard}
            _train_and_report(request, shards, flags, as_json=as_json)
        else:
            _train(request, shards, Console(quiet=True), baseline=False, tensorboard=False)


def _train_and_report(
    request: Request, shards: World | None, flags: dict[str, bool], *, as_json: bool
) -> None:
    console, folder = Console(quiet=as_json), request.folder
    say(console, *request.notes)
    asked = flags | {"--sharded": shards is not None}
    with resume_hint_on_interrupt(request, asked), errors_of_recipe(request.recipe):
        options = {name.removeprefix("--"): is_set for name, is_set in flags.items()}
        summary, split = _train(request, shards, console, **options)
        result = summary.as_dict()
        result["test_records"] = len(split.test) if isinstance(split.test, Sized) else None
        result["ledger_id"] = summary.engine.ledger.id
        before = (folder.result or {}).get("private") or {}
        if before.get("steps") == summary.private.steps:  # the same weights, scored before
            scores = summary.private.scores
            result["private"] |= {name: before[name] for name in scores if name in before}
        if result["non_private"] is None:
            # A model that was trained without privacy before stays part of the result.
            result["non_private"] = (folder.result or {}).get("non_private")
        result = folder.finish(result)
        with refusals():
            with under_way("Writing the report"):
                statement = statement_of_folder(folder.path)
            report = default_place(folder.path)
            require_not_worse(statement, report)
            write(statement, report)
            head = statement.head
    if as_json:
        found = {**result, "folder": str(folder.path), "report": str(report), "head": head}
        print_json(found, strict=False)
        return
    console.print(summary.as_table())
    for remark in summary.remarks():
        console.print(remark, markup=False)
    say(console, f"Run folder: {folder.path}", f"Privacy report: {report}")
    say(console, f"Head of the run: {head}", _NOTE)


def _train(
    request: Request,
    shards: World | None,
    console: Console,
    *,
    baseline: bool,
    tensorboard: bool,
) -> "tuple[TrainingSummary, Split]":
    recipe, folder = request.recipe, request.folder
    with refusals():
        events = EventWriter(folder.path / "events") if tensorboard else None
        data = load_data(request)
        split, model = data.split, request.build_model()
        if shards is not None:
            shard_by_block(model, recipe.name, shards)
        engine = attach_engine(request, data, model)
    display = TrainingDisplay(console, "private", recipe, engine.planned_steps, engine.steps_taken)
    decide = None if shards is None else partial(_decide_together, shards)
    with plain_warnings(), display, checkpoints(request, engine, data, decide) as save:

        def on_step() -> None:
            save()
            display.on_step()

        def on_epoch(report: EpochReport) -> None:
            folder.metrics.add(report.as_dict())
            if events is not None:
                events.add(report.as_dict())
            display.on_epoch(report)

        seconds = folder.metrics.keep_until(engine.epochs_completed)
        private = train_private(
            recipe, split, model, engine, on_epoch=on_epoch, on_step=on_step, seconds=seconds
        )
    folder.describe(engine.settings())  # with the steps and epsilon that it reached
    folder.save_model(model)
    ordinary = None
    if baseline:
        steps = ordinary_steps(recipe.settings, split)
        with TrainingDisplay(console, "non-private", recipe, steps) as display:
            ordinary = train_ordinary(
                recipe,
                split,
                request.build_model(),
                seed=request.seed,
                on_epoch=display.on_epoch,
                on_step=display.on_step,
            )
    is_smoke = bool(folder.config["smoke"])
    return TrainingSummary(recipe, request.seed, engine, private, ordinary, is_smoke), split


def _decide_together(world: World, wanted: bool) -> bool:
    """What rank 0 wants: clocks differ, and sharded weights are gathered by all ranks."""
    return world.lead(lambda: wanted)


class TrainingSummary:
    """One recipe trained privately and, to compare, ordinarily from the same initial weights."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int | None,
        engine: "PrivacyEngine",
        private: Outcome,
        ordinary: Outcome | None,
        is_smoke: bool,
    ) -> None:
        self.recipe, self.seed, self.engine = recipe, seed, engine
        self.private, self.ordinary, self.is_smoke = private, ordinary, is_smoke
        settings, ledger = recipe.settings, engine.ledger
        self.is_guarantee = resolve(settings.accountant).is_guarantee
        # Steps that are in the ledger and not in the weights: interruptions undid them.
        self.lost_steps = ledger.steps - private.steps
        # What is often reported for batches that were not drawn by Poisson sampling.
        self.epsilon_if_poisson: float | None = None
        assumed = as_if_poisson(ledger.events)
        if list(ledger.events) != assumed:
            kind = settings.accountant
            pretended = profile(assumed, accountant=kind, adjacency=ledger.adjacency)
            self.epsilon_if_poisson = pretended.epsilon(settings.delta)

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
                "is_guarantee": self.is_guarantee and self.seed is None,
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
        columns = {"private": self._column(self.private)}
        if self.ordinary is not None:
            columns["non-private"] = self._column(self.ordinary) | {"epsilon spent": "no bound"}
        settings, engine = self.recipe.settings, self.engine
        spent = f"{printed(engine.epsilon(), up=self.is_guarantee)} of {settings.epsilon:g}"
        groups = counted(len(engine.groups), "group")
        kind = engine.ledger.unit
        most = "" if kind is None else f"{kind.name}, at most {kind.records:,} records in a step"
        unit = {"unit of privacy": most} if most else {}
        columns["private"] |= {
            "epsilon spent": spent + ("" if self.is_guarantee else " (NOT a guarantee)"),
            "delta": f"{settings.delta:g}",
            "adjacency": engine.ledger.adjacency,
            **unit,
            "sampling": settings.sampling,
            "noise": engine.noise,
            "noise multiplier": f"{engine.noise_multiplier:.3f} (by {settings.accountant})",
            "clipping": settings.clipping,
            "grouping": f"{settings.grouping} ({groups})",
            "sensitivity": f"{engine.sensitivity:g}",
        }
        if engine.ranks > 1:
            columns["private"]["ranks"] = f"{engine.ranks:,}"
        name = titled(self.recipe.name, smoke=self.is_smoke)
        table = Table("", title=f"{name}: {' and '.join(columns)} training")
        for name in columns:
            table.add_column(name, justify="right")
        for row in columns["private"]:
            table.add_row(row, *(column.get(row, "") for column in columns.values()))
        return table

    @staticmethod
    def _column(outcome: Outcome) -> dict[str, str]:
        scores = {title(k): score(k, v) for k, v in outcome.scores.items() if k != "test_loss"}
        return scores | {"training time": f"{outcome.seconds:.1f} s", "steps": str(outcome.steps)}

    def remarks(self) -> list[str]:
        """What must not be overlooked."""
        found, settings = [], self.recipe.settings
        if self.lost_steps:
            found.append(
                f"Recorded and then lost to interruptions: {counted(self.lost_steps, 'step')}. What"
                " is recorded counts as spent."
            )
        if not self.is_guarantee:
            bound = self.engine.ledger.epsilon(settings.delta, accountant="pld")
            found.append(
                f"This epsilon is by {settings.accountant}, an approximation and NOT a guarantee."
                f" The upper bound is {printed(bound)}, by pld."
            )
        if self.epsilon_if_poisson is not None:
            found.append(
                f"Poisson sampling would have spent {printed(self.epsilon_if_poisson)}. That"
                " figure, though often reported for such batches, does not hold for them."
            )
        if self.seed is not None:
            found.append("Seeded: the noise can be recomputed, so this run protects nobody.")
        return found
