"""Which settings a sweep goes over, and which values they take."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

from quietgrad import accounting
from quietgrad._checks import unknown_name
from quietgrad._format import json_number, printed
from quietgrad.accounting.events import GaussianEvent, Poisson
from quietgrad.accounting.tuning import RunsDistribution, TunedSearch
from quietgrad.recipes.recipe import Settings
from quietgrad.recipes.trials import Trial

_FIELDS = {
    "lr": "learning_rate",
    "radius": "radius",
    "stability": "stability",
    "momentum": "momentum",
    "epsilon": "epsilon",
    "weight-decay": "weight_decay",
    "inner-momentum": "inner_momentum",
}
_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
_DEFAULTS: dict[str, tuple[float, ...]] = {
    "radius": (0.001, 0.01, 0.1, 1.0, 10.0),
    "stability": (0.001, 0.01, 0.1, 1.0),
    "momentum": (0.0, 0.5, 0.9),
    "epsilon": (1.0, 2.0, 3.0, 8.0),
    "weight-decay": (0.0, 0.0001, 0.001, 0.01),
    "inner-momentum": (0.08, 0.3),
}


@dataclass(frozen=True)
class Axis:
    """A setting and its values.

    Attributes:
        name: as on the command line.
        values: it takes.
    """

    name: str
    values: tuple[float, ...]

    @property
    def field(self) -> str:
        """The setting it changes."""
        return _FIELDS[self.name]


def axes_of(over: Sequence[str], settings: Settings) -> list[Axis]:
    """What `--over` asks for: `lr,radius`, or `lr=0.1,0.2,0.4` for values of one's own.

    Raises:
        ValueError: it is not understood, or there are more than two.
    """
    axes = [axis for part in over for axis in _parsed(part, settings)]
    if not 1 <= len({axis.name for axis in axes}) == len(axes) <= 2:
        raise ValueError(f"--over {' --over '.join(over)}: expected one or two different settings")
    return axes


def _parsed(part: str, settings: Settings) -> list[Axis]:
    name, given, values = part.partition("=")
    if not given:
        return [Axis(_known(each), _default(each, settings)) for each in part.split(",")]
    try:
        numbers = tuple(dict.fromkeys(float(value) for value in values.split(",")))
    except ValueError:
        raise ValueError(
            f"--over {part}: expected numbers with commas between them, as in lr=0.1,0.2"
        ) from None
    return [Axis(_known(name), tuple(sorted(numbers)))]


def _known(name: str) -> str:
    if name not in _FIELDS:
        raise unknown_name("setting to sweep over", name, _FIELDS)
    return name


def _default(name: str, settings: Settings) -> tuple[float, ...]:
    if name == "lr":
        return tuple(settings.learning_rate * factor for factor in _AROUND)
    return _DEFAULTS[name]


_READ_MORE = "quietgrad tune-cost --help, docs/accounting.md"


@dataclass(frozen=True)
class SweepCost:
    """All figures by the Renyi accountant, which are upper bounds.

    Attributes:
        search: a random search with as many choices on average as there are settings, their number
            drawn in the way that is cheapest. What it calls a run is all runs of a choice: whoever
            chooses by their mean looks at each of them.
        runs_per_choice: one for each seed.
        run_epsilon: of the one run that spends most.
        runs: that were made.
        naive_epsilon: of all of them, which is what a fixed grid costs.
    """

    search: TunedSearch
    runs_per_choice: int
    run_epsilon: float
    runs: int
    naive_epsilon: float

    @classmethod
    def of(
        cls, trials: Sequence[Trial], *, delta: float, choices: int, seeds: int
    ) -> "SweepCost | None":
        """What is known about a sweep; None where nothing is.

        Args:
            trials: of this sweep and no other, private ones.
            delta: of each.
            choices: of settings, from which the best is taken.
            seeds: runs of each.
        """
        if not all(map(_is_known, trials)):
            return None
        worst = _worst(trials)
        of_choice = [replace(worst, steps=worst.steps * seeds)]
        kinds: tuple[RunsDistribution, ...] = get_args(RunsDistribution)
        searches = (
            accounting.tuned(mean_runs=choices, delta=delta, distribution=kind, events=of_choice)
            for kind in kinds
        )
        cheapest = min(searches, key=lambda search: search.epsilon)
        return cls(
            replace(cheapest, noise_multiplier=worst.noise_multiplier),
            seeds,
            accounting.profile([worst], accountant="rdp").epsilon(delta),
            len(trials),
            accounting.profile(map(_event, trials), accountant="rdp").epsilon(delta),
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **asdict(self.search),
            "epsilon": json_number(self.search.epsilon),
            "single_run_epsilon": json_number(self.run_epsilon),
            "runs_per_choice": self.runs_per_choice,
            "choice_epsilon": json_number(self.search.single_run_epsilon),
            "accountant": "rdp",
            "naive_runs": self.runs,
            "naive_epsilon": json_number(self.naive_epsilon),
        }

    def lines(self) -> list[str]:
        """The same for people."""
        search = self.search
        drawn = search.distribution.replace("poisson", "Poisson")
        grid = f"the best of a fixed grid of {self.runs} runs, as here, would spend"
        searched = f"{search.mean_runs:g} runs on average"
        if self.runs_per_choice > 1:
            searched = f"{search.mean_runs:g} choices on average, each {self.runs_per_choice} runs,"
        return [
            f"On private data, {grid} epsilon {printed(self.naive_epsilon)} (all {self.runs}"
            f" composed); one run {printed(self.run_epsilon)}.",
            f"A random search with {searched} would spend {printed(search.epsilon)}, if their"
            f" number is drawn from a {drawn} distribution (the cheapest of quietgrad tune-cost).",
            f"Upper bounds by the Renyi accountant, delta {search.delta:g}. More: {_READ_MORE}.",
        ]


def _is_known(trial: Trial) -> bool:
    """Whether it was sampled in a way for which the cost of a search is known."""
    settings = trial.settings
    return settings["sampling"] == "poisson" and settings["adjacency"] in (None, "add-remove-one")


def _event(trial: Trial) -> GaussianEvent:
    return GaussianEvent(*_plan(trial))


def _plan(trial: Trial) -> tuple[float, Poisson, int]:
    assert trial.noise_multiplier is not None
    assert trial.sample_rate is not None
    return trial.noise_multiplier, Poisson(trial.sample_rate), trial.steps


def _worst(trials: Sequence[Trial]) -> GaussianEvent:
    """What spends at least as much as any of them, at every order of the Renyi divergence.

    That is the one that spends most, where all have the same sampling and steps, as they do unless
    a recipe has others for a clipping function. A search needs a bound for every order: the run
    with the largest epsilon need not be the worst at all of them.
    """
    noise, sampling, steps = zip(*map(_plan, trials), strict=True)
    return GaussianEvent(min(noise), max(sampling, key=lambda each: each.rate), max(steps))
