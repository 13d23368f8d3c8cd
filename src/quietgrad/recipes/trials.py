"""One recipe trained several times: with other settings, with other seeds."""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from quietgrad.errors import QuietgradError
from quietgrad.recipes.recipe import Places, Recipe, Split
from quietgrad.recipes.training import (
    EpochReport,
    Outcome,
    attach,
    train_ordinary,
    train_private,
)

NOT_PRIVATE = "none"
"""In place of a clipping function: training without privacy."""


class TrialsError(QuietgradError):
    """A file of trials cannot be used."""


@dataclass(frozen=True)
class Trial:
    """A training that was made.

    Attributes:
        recipe: its name.
        settings: all of its constants.
        seed: of weights, sampling and noise.
        is_private: or trained without clipping and noise.
        scores: on held-out data.
        epsilon: spent; None without privacy.
        noise_multiplier: of its steps; None without privacy.
        sample_rate: expected share of the data in a step; None without privacy.
        steps: taken.
        seconds: they took.
    """

    recipe: str
    settings: Mapping[str, Any]
    seed: int
    is_private: bool
    scores: Mapping[str, float]
    epsilon: float | None
    noise_multiplier: float | None
    sample_rate: float | None
    steps: int
    seconds: float

    @property
    def key(self) -> str:
        """Equal for trials that need not be made twice."""
        return key_of(self.recipe, self.settings, self.seed, self.is_private)


def key_of(recipe: str, settings: Mapping[str, Any], seed: int, is_private: bool) -> str:
    """What a trial is known by."""
    return json.dumps([recipe, dict(sorted(settings.items())), seed, is_private])


class Shown(Protocol):
    """What is told of a training as it goes."""

    def on_step(self) -> None:
        """After each update."""

    def on_epoch(self, report: EpochReport) -> None:
        """After each pass."""


Showing = Callable[[Recipe, int], AbstractContextManager[Shown]]
"""Shows a training of a recipe that has so many steps."""


@dataclass
class Trials:
    """Trials that were made, in a file if there is one.

    Args:
        path: a file with a line for each; None to keep none.
    """

    path: Path | None = None
    made: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for trial in _read(self.path):
                self.made[trial.key] = trial

    def get(self, recipe: Recipe, seed: int, *, is_private: bool = True) -> Trial | None:
        """The trial of this recipe and seed, if it was made."""
        return self.made.get(key_of(recipe.name, asdict(recipe.settings), seed, is_private))

    def add(self, trial: Trial) -> None:
        """Keep it at once: the next may be interrupted."""
        self.made[trial.key] = trial
        if self.path is not None:
            with self.path.open("a") as stream:
                stream.write(json.dumps(asdict(trial)) + "\n")


def make(
    recipe: Recipe,
    split: Split,
    places: Places,
    seed: int,
    showing: Showing,
    *,
    is_private: bool = True,
) -> Trial:
    """Train once, from initial weights of this seed."""
    torch.manual_seed(seed)
    model = recipe.build_model(places)
    return (_private if is_private else _ordinary)(recipe, split, model, seed, showing)


def _private(recipe: Recipe, split: Split, model: nn.Module, seed: int, showing: Showing) -> Trial:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "seed=.*protects nobody")  # said once for all trials
        engine = attach(recipe, split, model, seed=seed)
    with showing(recipe, engine.planned_steps or 0) as shown:
        outcome = train_private(
            recipe, split, model, engine, on_epoch=shown.on_epoch, on_step=shown.on_step
        )
    return _trial(
        recipe,
        seed,
        outcome,
        epsilon=engine.epsilon(),
        noise_multiplier=engine.noise_multiplier,
        sample_rate=engine.sample_rate,
    )


def _ordinary(recipe: Recipe, split: Split, model: nn.Module, seed: int, showing: Showing) -> Trial:
    steps = -(-len(split.train) // recipe.settings.batch_size)  # type: ignore[arg-type]
    with showing(recipe, recipe.settings.epochs * steps) as shown:
        outcome = train_ordinary(
            recipe, split, model, seed=seed, on_epoch=shown.on_epoch, on_step=shown.on_step
        )
    return _trial(recipe, seed, outcome)


def _trial(
    recipe: Recipe,
    seed: int,
    outcome: Outcome,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
) -> Trial:
    return Trial(
        recipe=recipe.name,
        settings=asdict(recipe.settings),
        seed=seed,
        is_private=epsilon is not None,
        scores=outcome.scores,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=outcome.steps,
        seconds=outcome.seconds,
    )


def _read(path: Path) -> Iterable[Trial]:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            yield Trial(**json.loads(line))
        except (TypeError, ValueError) as error:
            raise TrialsError(
                f"line {number} of {path} is not a trial ({error}): delete the line, or choose"
                " another folder"
            ) from error
