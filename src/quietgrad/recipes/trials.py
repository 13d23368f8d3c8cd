"""One recipe trained several times: with other settings, with other seeds."""

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import torch

from quietgrad._checks import require_count, require_number, require_positive, require_rate
from quietgrad._version import __version__
from quietgrad.errors import QuietgradError
from quietgrad.recipes.recipe import Places, Recipe, Split
from quietgrad.recipes.training import (
    EpochReport,
    attach,
    ordinary_steps,
    train_ordinary,
    train_private,
)


@dataclass(frozen=True)
class Origin:
    """Data, model and program of a trial: trials of different origin say nothing of each other."""

    smoke: bool = False  # synthetic data and a small model
    # Where the data were taken from: folders, or packages with their digests.
    data: tuple[str, ...] = ()
    data_dir: str | None = None  # the folder that was given for them
    model_dir: str | None = None  # the folder that was given for a pretrained model
    quietgrad: str = __version__  # the version

    @classmethod
    def of(cls, places: Places, data: Sequence[str], *, smoke: bool) -> "Origin":
        """Of trials that are made now, with data from these places."""
        data_dir, model_dir = (
            None if folder is None else str(folder.resolve())
            for folder in (places.data, places.model)
        )
        return cls(smoke, tuple(data), data_dir, model_dir)

    @classmethod
    def from_dict(cls, stated: object) -> "Origin":
        """As it was written down; ValueError if it is no origin."""
        names = {each.name for each in fields(cls)}
        if not isinstance(stated, Mapping) or set(stated) != names or not _is_origin(stated):
            raise ValueError(f"origin={stated!r}: expected {', '.join(sorted(names))}")
        return cls(**{**stated, "data": tuple(stated["data"])})

    @property
    def may_be_unstated(self) -> bool:
        """Whether trials that were kept without an origin count: nothing else was asked for."""
        return not self.smoke and self.data_dir is None and self.model_dir is None


def _is_origin(stated: Mapping[str, Any]) -> bool:
    data = stated["data"]
    return (
        isinstance(stated["smoke"], bool)
        and isinstance(data, list | tuple)
        and all(isinstance(each, str) for each in data)
        and all(isinstance(stated[name], str | None) for name in ("data_dir", "model_dir"))
        and isinstance(stated["quietgrad"], str)
    )


NOT_PRIVATE = "none"
"""In place of a clipping function: training without privacy."""


@dataclass(frozen=True)
class Trial:
    """A training that was made. Figures of privacy are None where it was trained without."""

    recipe: str
    settings: Mapping[str, Any]
    seed: int
    is_private: bool
    scores: Mapping[str, float]  # on held-out data; not finite where training diverged
    epsilon: float | None
    noise_multiplier: float | None
    sample_rate: float | None
    steps: int
    seconds: float
    origin: Origin | None = None  # None where it was not kept

    @property
    def key(self) -> str:
        """Equal for trials that need not be made twice."""
        return key_of(self.recipe, self.settings, self.seed, self.is_private, self.origin)

    def as_dict(self) -> dict[str, Any]:
        """As JSON can say it: a score that is not finite is null."""
        scores = {name: finite(score) for name, score in self.scores.items()}
        return {**asdict(self), "scores": scores}

    @classmethod
    def from_line(cls, line: str) -> "Trial":
        """A trial that was kept; ValueError or TypeError if the line is none."""
        stated = json.loads(line)
        if not isinstance(stated, dict):
            raise ValueError("it is no JSON object")
        if stated.get("origin") is not None:
            stated["origin"] = Origin.from_dict(stated["origin"])
        trial = cls(**stated)
        _require_sound(trial)
        read = {name: math.nan if each is None else each for name, each in trial.scores.items()}
        return cls(**{**stated, "scores": read})


def key_of(
    recipe: str, settings: Mapping[str, Any], seed: int, is_private: bool, origin: Origin | None
) -> str:
    """What a trial is known by."""
    made_with = None if origin is None else asdict(origin)
    known = dict(sorted(settings.items()))
    if known.get("records_per_unit", 0) is None:  # trials from before there were units lack it
        del known["records_per_unit"]
    return json.dumps([recipe, known, seed, is_private, made_with])


def finite(score: float | None) -> float | None:
    """The score; None if it is not finite, which JSON has no number for."""
    return score if score is not None and math.isfinite(score) else None


def _require_sound(trial: Trial) -> None:
    """Refuse values that no trial has: a file can be edited."""
    kinds = {"recipe": str, "settings": dict, "is_private": bool, "scores": dict}
    for name, kind in kinds.items():
        if not isinstance(getattr(trial, name), kind):
            raise ValueError(f"{name}={getattr(trial, name)!r}: expected {kind.__name__}")
    if not trial.scores:
        raise ValueError("it has no scores")
    for name, score in trial.scores.items():
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            raise ValueError(f"scores have {name}={score!r}: expected a number, or null")
    require_count("seed", trial.seed, at_least=0)
    require_count("steps", trial.steps, at_least=0)
    require_number("seconds", trial.seconds, at_least=0)
    if trial.is_private:
        require_number("epsilon", trial.epsilon, at_least=0)
        require_positive("noise_multiplier", trial.noise_multiplier)
        require_rate("sample_rate", trial.sample_rate)


class TrialsError(QuietgradError):
    """A file of trials cannot be used."""


class TrialDisplay(Protocol):
    """The display of a training in progress."""

    def on_step(self) -> None:
        """After each update."""

    def on_epoch(self, report: EpochReport) -> None:
        """After each pass."""


Showing = Callable[[Recipe, int], AbstractContextManager[TrialDisplay]]
"""Opens the display of a training of a recipe that has so many steps."""


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
        """The trial of this recipe, seed and origin, if it was made; it must have the metric."""
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
    device: str = "cpu",
) -> Trial:
    """Train once, on a device, from initial weights of this seed."""
    torch.manual_seed(seed)
    model = recipe.model(places).to(device)
    engine = None
    if is_private:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "seed=.*protects nobody")  # said once for all trials
            engine = attach(recipe, split, model, seed=seed)
        steps = engine.planned_steps or 0
    else:
        steps = ordinary_steps(recipe.settings, split)
    with showing(recipe, steps) as shown:
        if engine is not None:
            outcome = train_private(
                recipe, split, model, engine, on_epoch=shown.on_epoch, on_step=shown.on_step
            )
        else:
            outcome = train_ordinary(
                recipe, split, model, seed=seed, on_epoch=shown.on_epoch, on_step=shown.on_step
            )
    return Trial(
        recipe=recipe.name,
        settings=asdict(recipe.settings),
        seed=seed,
        is_private=is_private,
        scores=outcome.scores,
        epsilon=None if engine is None else engine.epsilon(),
        noise_multiplier=None if engine is None else engine.noise_multiplier,
        sample_rate=None if engine is None else engine.sample_rate,
        steps=outcome.steps,
        seconds=outcome.seconds,
        origin=origin,
    )
