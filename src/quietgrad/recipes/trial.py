"""A training that was made, and the line of a file in which it is kept."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quietgrad._checks import require_count, require_number, require_positive, require_rate
from quietgrad.recipes.origin import Origin

NOT_PRIVATE = "none"
"""In place of a clipping function: training without privacy."""


@dataclass(frozen=True)
class Trial:
    """A training that was made.

    Attributes:
        recipe: its name.
        settings: all of its constants.
        seed: of weights, sampling and noise.
        is_private: or trained without clipping and noise.
        scores: on held-out data; not finite where training diverged.
        epsilon: spent; None without privacy.
        noise_multiplier: of its steps; None without privacy.
        sample_rate: expected share of the data in a step; None without privacy.
        steps: taken.
        seconds: they took.
        origin: data, model and program; None where it was not kept.
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
    origin: Origin | None = None

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
        """What was kept of a trial.

        Raises:
            ValueError: the line is none.
            TypeError: it lacks a field, or has one that is not known.
        """
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
    return json.dumps([recipe, dict(sorted(settings.items())), seed, is_private, made_with])


def finite(score: float | None) -> float | None:
    """The score; None if it is not finite, which JSON has no number for."""
    return score if score is not None and math.isfinite(score) else None


def _require_sound(trial: Trial) -> None:
    """A file can be edited: what is computed from it must be what a trial says."""
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
