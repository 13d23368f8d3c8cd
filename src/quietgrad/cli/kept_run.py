"""A run and its folder: with which data it goes on, what is saved when, and how it is stopped."""

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import nn

from quietgrad.cli.failures import Refusal, Stopped
from quietgrad.cli.request import Request
from quietgrad.data.places import noted_places
from quietgrad.engine import PrivacyEngine
from quietgrad.errors import LedgerError
from quietgrad.recipes import Split
from quietgrad.recipes.training import OnStep, attach
from quietgrad.runs import Checkpointer, RunFolderError
from quietgrad.runs.fingerprints import kept_fingerprint
from quietgrad.runs.interrupts import saved_on_interrupt

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
