"""A run that `quietgrad train` was asked for: its folder, its data, its engine, its checkpoints."""

import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from quietgrad._progress import announced
from quietgrad._version import __version__
from quietgrad.cli.common import Refusal, Stopped
from quietgrad.cli.recipe_options import RequestedOptions
from quietgrad.data.sources import noted_places
from quietgrad.errors import LedgerError
from quietgrad.recipes import load
from quietgrad.recipes.recipe import Places, Recipe, Split
from quietgrad.recipes.training import OnStep, attach
from quietgrad.runs.folder import Checkpointer, RunFolder
from quietgrad.runs.resume import kept_fingerprint, require_ledger_of, saved_on_interrupt
from quietgrad.runs.schema import RunFolderError, now

if TYPE_CHECKING:
    from quietgrad.engine.engine import PrivacyEngine

_WAITING = b"\nStopping after this step, to save it; Ctrl-C again stops at once.\n"
# What a run needs to be resumed.
_CONFIG: dict[str, Any] = {
    "recipe": str,
    "changes": dict,
    "smoke": bool,
    "data_dir": str | None,
    "model_dir": str | None,
    "seed": int | None,
    "initial_seed": int,
}


@dataclass(frozen=True)
class Request:
    """Everything about a run that is known before it starts.

    Attributes:
        recipe: with all changes made to it.
        places: where data and weights are.
        seed: fixes noise and sampling, for tests.
        initial_seed: fixes the initial weights, which are public.
        folder: where the run is kept.
        state: the checkpoint to resume from, if there is one.
        notes: what the user should know.
        config: what a new run keeps in its folder, once it is known that it can begin.
        device: where the model is trained; a run may be resumed on another one.
    """

    recipe: Recipe
    places: Places
    seed: int | None
    initial_seed: int
    folder: RunFolder
    state: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    config: dict[str, Any] | None = None
    device: str = "cpu"

    def build_model(self) -> nn.Module:
        """The same weights every time, also when the run is resumed; they hold nothing private."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.initial_seed)
            with announced("Building the model"):
                return self.recipe.model(self.places).to(self.device)


def prepare(asked: RequestedOptions, *, out: Path | None, resume: bool) -> Request:
    """Read the folder `out`, or find a new one; nothing is made yet.

    Raises:
        ValueError: what is asked for contradicts itself, or the run in the folder.
    """
    if out is None and resume:
        raise ValueError("--resume needs --out: the folder of the run to resume")
    name = asked.recipe if out is not None else asked.resolved().name
    numbered = (Path("runs") / f"{name}-{number}" for number in count(1))
    folder = RunFolder(out or next(path for path in numbered if not path.exists()))
    if folder.has_run and not resume:
        raise ValueError(
            f"{out} holds a run already: add --resume to resume it, or choose another folder"
        )
    if folder.has_run:
        return replace(_resume(asked, folder), device=asked.device)
    recipe = asked.resolved()
    folder.require_free()
    initial_seed = secrets.randbits(63) if asked.seed is None else asked.seed
    config = {
        "quietgrad": __version__,
        **_as_config(asked, recipe),
        "settings": asdict(recipe.settings),
        "initial_seed": initial_seed,
        "begun": now(),
    }
    notes = (f"Nothing to resume in {out}: a new run begins.",) if resume else ()
    return Request(
        recipe,
        asked.places,
        asked.seed,
        initial_seed,
        folder,
        notes=notes,
        config=config,
        device=asked.device,
    )


def _resume(asked: RequestedOptions, folder: RunFolder) -> Request:
    config = folder.config
    for field, kind in _CONFIG.items():
        if field not in config or not isinstance(config[field], kind):
            raise RunFolderError(
                f"the config.json in {folder.path} does not say what {field!r} the run was begun"
                " with: restore a copy of it, or choose another folder. The ledger still says what"
                " was spent"
            )
    places = (config[name] for name in ("data_dir", "model_dir"))
    begun = RequestedOptions(
        config.get("target") or config["recipe"],
        config["changes"],
        Places(*(None if place is None else Path(place) for place in places)),
        config["smoke"],
        config["seed"],
    )
    try:
        recipe = begun.resolved()
    except (TypeError, ValueError) as error:
        raise RunFolderError(
            f"the config.json in {folder.path} asks for what this version does not know ({error}):"
            " restore a copy of it, or choose another folder"
        ) from error
    _require_same(asked, begun, recipe, folder)
    notes = []
    if config.get("recipe_sha256") not in (None, recipe.digest):
        notes.append(
            f"The file of {recipe.target} was changed since the run was begun. Settings and data"
            " are compared with those of then; the model's code and the losses are not."
        )
    state = folder.load()
    require_ledger_of(folder, state)
    done = 0 if state is None else state.get("steps_taken")
    note = f"Resuming the run in {folder.path} after {done} steps."
    if folder.result is not None:
        note = f"The run in {folder.path} is finished: nothing is left to train."
    notes.append(note)
    return Request(
        recipe, begun.places, begun.seed, config["initial_seed"], folder, state, tuple(notes)
    )


def _require_same(
    asked: RequestedOptions, begun: RequestedOptions, recipe: Recipe, folder: RunFolder
) -> None:
    """Refuse options that differ from those the run was begun with; left out ones do not."""
    known = {**_as_config(begun, recipe), **asdict(recipe.settings)}
    said = {
        name: value
        for name, value in _as_config(asked, load(asked.recipe)).items()
        if value is not None and value is not False and name != "recipe_sha256"
    }
    said |= said.pop("changes")
    different = [
        f"{name}={known.get(name)!r}, not {value!r}"
        for name, value in said.items()
        if known.get(name) != value
    ]
    if different:
        raise ValueError(
            f"the run in {folder.path} was begun with {'; '.join(different)}: a run is resumed with"
            " the options it was begun with. Leave out what differs, or choose another folder"
        )


def _as_config(asked: RequestedOptions, recipe: Recipe) -> dict[str, Any]:
    """Enough to ask for the same again."""
    own = {"target": recipe.target, "recipe_sha256": recipe.digest}
    data, model = (
        None if folder is None else str(folder.absolute())
        for folder in (asked.places.data, asked.places.model)
    )
    return {
        "recipe": recipe.name,
        **({} if recipe.target is None else own),
        "changes": dict(asked.changes),
        "smoke": asked.smoke,
        "data_dir": data,
        "model_dir": model,
        "seed": asked.seed,
    }


class TrainingData(NamedTuple):
    """The data of a run, where they were found, and by what the checkpoint knows them again."""

    split: Split
    places: list[str]
    fingerprint: Mapping[str, Any]


def load_data(request: Request) -> TrainingData:
    """The data of a run; RunFolderError if it was begun with others."""
    with noted_places() as places, announced("Loading the data"):
        split = request.recipe.split(request.places)
    begun = places if request.config is not None else request.folder.config.get("data", places)
    if begun != places:
        raise RunFolderError(
            f"the run in {request.folder.path} was begun with the data of"
            f" {_listed(begun)}, and now there is {_listed(places)}: a guarantee is about one data"
            " set. See $QUIETGRAD_DATA, or begin in another folder"
        )
    with announced("Comparing the data with those of the checkpoint"):
        fingerprint = kept_fingerprint(request.state, split.train)
    return TrainingData(split, places, fingerprint)


def _listed(places: object) -> str:
    return ", ".join(map(str, places)) if isinstance(places, list) and places else "no folder"


def attach_engine(request: Request, data: TrainingData, model: nn.Module) -> "PrivacyEngine":
    """An engine that records in the run's folder, where the run left off."""
    folder, is_new = request.folder, request.config is not None
    ledger = None if is_new else folder.ledger
    with announced("Computing the noise for the target"):
        engine = attach(request.recipe, data.split, model, seed=request.seed, ledger=ledger)
    if request.config is not None:
        # Only now: what is refused leaves no folder behind that would have to be cleared away.
        folder.begin({**request.config, "data": data.places})
        if engine.is_leader:
            engine.ledger.keep_in(folder.ledger)
    folder.remove_unfinished()  # nobody else writes here: the ledger is locked by now
    if request.state is not None:
        engine.load_state_dict(request.state)
    _ = engine.noise_multiplier  # refuses a target that what the ledger holds already exceeds
    folder.describe(engine.settings())
    return engine


@contextmanager
def checkpoints(
    request: Request,
    engine: "PrivacyEngine",
    data: TrainingData,
    decide: Callable[[bool], bool] | None = None,
) -> Iterator[OnStep]:
    """Keep the run in its folder; gives the function to call after each step.

    With `decide` all ranks save together, when it says so; Ctrl-C then leaves the last checkpoint.
    """
    checkpointer = Checkpointer(request.folder, engine, data.fingerprint, decide or bool)

    def tell() -> None:
        """Past Python's buffers, in which the signal may have come."""
        with suppress(OSError):
            os.write(2, _WAITING)

    try:
        checkpointer.save()
        caught = (
            saved_on_interrupt(checkpointer, on_wait=tell)
            if decide is None
            else nullcontext(lambda: None)
        )
        with caught as stop_if_asked:

            def on_step() -> None:
                stop_if_asked()
                checkpointer.save_if_due()

            yield on_step
        checkpointer.save()
    finally:
        engine.ledger.close()


@contextmanager
def resume_hint_on_interrupt(request: Request, flags: Mapping[str, bool]) -> Iterator[None]:
    """Say in one line how to resume the run, with the same flags, after Ctrl-C or a full disk."""
    place = shlex.quote(str(request.folder.path))
    repeated = [name for name, is_set in flags.items() if is_set]
    if request.device != "cpu":
        repeated += ["--device", request.device]
    name = shlex.quote(request.recipe.target or request.recipe.name)
    words = ["quietgrad train", name, "--out", place, "--resume", *repeated]
    hint = f"Resume with: {' '.join(words)}"
    try:
        yield
    except KeyboardInterrupt:
        if not request.folder.has_run:
            raise
        raise Stopped(f"stopped. {hint}") from None
    except (LedgerError, RunFolderError) as error:
        raise Refusal(f"{error}. {hint}") from error
