"""One recipe trained several times: with other settings, with other seeds."""

import json
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from quietgrad.errors import QuietgradError
from quietgrad.recipes.origin import Origin
from quietgrad.recipes.recipe import Places, Recipe, Split
from quietgrad.recipes.training import (
    EpochReport,
    Outcome,
    attach,
    train_ordinary,
    train_private,
)
from quietgrad.recipes.trial import NOT_PRIVATE as NOT_PRIVATE
from quietgrad.recipes.trial import Trial as Trial
from quietgrad.recipes.trial import key_of


class TrialsError(QuietgradError):
    """A file of trials cannot be used."""


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
    _lines: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self._read(self.path)

    def get(
        self, recipe: Recipe, seed: int, origin: Origin, *, is_private: bool = True
    ) -> Trial | None:
        """The trial of this recipe, seed and origin, if it was made.

        Raises:
            TrialsError: it was, and lacks the score that the recipe is about.
        """
        known = (recipe.name, asdict(recipe.settings), seed, is_private)
        keys = [key_of(*known, origin)]
        if origin.may_be_unstated:
            keys.append(key_of(*known, None))
        found = next((key for key in keys if key in self.made), None)
        if found is None:
            return None
        metric = f"test_{recipe.task.metric}"
        if metric not in self.made[found].scores:
            raise self._not_a_trial(self._lines.get(found), f"it has no {metric}")
        return self.made[found]

    def add(self, trial: Trial) -> None:
        """Keep it at once: the next may be interrupted."""
        self.made[trial.key] = trial
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(trial.as_dict(), allow_nan=False) + "\n")

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise TrialsError(
                f"{path} is not a file of trials ({error}): choose another folder"
            ) from error
        for number, line in enumerate(lines, start=1):
            try:
                trial = Trial.from_line(line)
            except (TypeError, ValueError) as error:
                raise self._not_a_trial(number, error) from error
            self.made[trial.key] = trial
            self._lines[trial.key] = number

    def _not_a_trial(self, number: int | None, why: object) -> TrialsError:
        return TrialsError(
            f"line {number} of {self.path} is not a trial ({why}): delete the line, or choose"
            " another folder"
        )


def make(
    recipe: Recipe,
    split: Split,
    places: Places,
    seed: int,
    showing: Showing,
    *,
    is_private: bool = True,
    origin: Origin | None = None,
) -> Trial:
    """Train once, from initial weights of this seed."""
    torch.manual_seed(seed)
    model = recipe.build_model(places)
    trial = (_private if is_private else _ordinary)(recipe, split, model, seed, showing)
    return replace(trial, origin=origin)


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
