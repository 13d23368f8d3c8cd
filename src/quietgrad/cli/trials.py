"""What commands that train several times have in common."""

import json
import math
import os
import shlex
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from scipy.stats import t as student

from quietgrad import recipes
from quietgrad.cli.common import Stopped, counted, plain_warnings, refusals
from quietgrad.cli.progress import live
from quietgrad.cli.recipe_options import require_trainable
from quietgrad.data.sources import noted_places
from quietgrad.recipes.recipe import Places, Recipe, Settings, Split
from quietgrad.recipes.trials import Origin, Trial, TrialDisplay, Trials, TrialsError, make


def resuming() -> str:
    """The running command with all that was said, and `--resume`: followed to the letter."""
    context = click.get_current_context()
    words = ["quietgrad", context.info_name or ""]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is ParameterSource.COMMANDLINE and parameter.name != "resume":
            words += _said(parameter, context.params[parameter.name or ""])
    return shlex.join([*words, "--resume"])


def _said(parameter: click.Parameter, value: object) -> list[str]:
    if isinstance(parameter, click.Argument):
        return [str(value)]
    option = parameter.opts[-1]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [word for each in values for word in (option, str(each))]


# They decide how a figure is computed, not which figure.
_WITHOUT_EFFECT = ("physical_batch_size", "noise")
# In every title; and a paper's figure is that for the very epsilon.
_TOLD_ANYWAY = ("clipping", "epsilon")
_ACCOUNTANT = "accountant"


Changes = dict[str, tuple[Any, Any]]
"""Of settings by name: what it is here, and what the recipe has."""


def changes(recipe: Recipe) -> Changes:
    """Settings that are not the recipe's own for this clipping function."""
    here = asdict(recipe.settings)
    there = asdict(recipes.load(recipe.name).changed(clipping=recipe.settings.clipping).settings)
    return {
        name: (value, there[name])
        for name, value in here.items()
        if value != there[name] and name not in _WITHOUT_EFFECT
    }


def told(found: Changes, *, smoke: bool = False) -> str:
    """What was changed, as a list in words; empty if nothing was."""
    parts = [_part(name, *pair) for name, pair in found.items() if name not in _TOLD_ANYWAY]
    return ", ".join([*(["made data and a small model (--smoke)"] if smoke else []), *parts])


def is_beside_papers(found: Changes, *, smoke: bool) -> bool:
    """Whether figures may be read beside those of papers, each of which has its own accountant."""
    return not smoke and not found.keys() - {*_TOLD_ANYWAY, _ACCOUNTANT}


def titled(name: str, *, smoke: bool) -> str:
    """What a title begins with: figures of made data must not be taken for others."""
    return f"{name} (smoke)" if smoke else name


def course(settings: Settings, swept: Collection[str] = ()) -> str:
    """What a title says about a training, but for settings that are swept over."""
    parts = [] if "epsilon" in swept else [f"epsilon {settings.epsilon:g}"]
    parts.append(counted(settings.epochs, "epoch"))
    if settings.limit is not None:
        parts.append(f"the first {settings.limit:,} samples")
    return ", ".join(parts)


def _part(name: str, here: Any, there: Any) -> str:
    if name == "limit" and here is not None:
        return f"the first {here:,} samples (recipe: all)"
    if name == "epochs":
        return f"{counted(here, 'epoch')} (recipe: {there})"
    return f"{name.replace('_', ' ')} {_value(here)} (recipe: {_value(there)})"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean with the margin of its 95 % confidence interval.

    It is None for a single value, and where a value is not finite.
    """

    mean: float
    margin: float | None

    def text(self, scale: float = 1.0) -> str:
        """As people write it."""
        if self.margin is None:
            return f"{self.mean * scale:.2f}"
        return f"{self.mean * scale:.2f} ± {self.margin * scale:.2f}"


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of a few independent values (Student's t)."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2 or not math.isfinite(mean):
        return Interval(mean, None)
    quantile = float(student.ppf((1 + _CONFIDENCE) / 2, count - 1))
    return Interval(mean, quantile * statistics.stdev(values) / count**0.5)


_FILE = "trials.jsonl"


def out_options(command: Callable[..., None]) -> Callable[..., None]:
    """Where trials are kept, and whether those in there count."""
    command = click.option(
        "--resume", is_flag=True, help="Go on with the trials in --out: those made count."
    )(command)
    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for the trials and what came of them.",
    )(command)


def ready(
    console: Console,
    variants: Collection[Recipe],
    places: Places,
    *,
    smoke: bool,
    out: Path | None,
    resume: bool,
    results: Sequence[str],
) -> "Bench":
    """A bench for these variants of one recipe; its folder is made once they are known to train.

    Args:
        console: shows how each training goes.
        variants: that differ in more than numbers.
        places: folders that were given.
        smoke: whether data and model are made.
        out: the folder; None to keep nothing.
        resume: whether the trials in it count.
        results: names of files that will be written into it.

    Raises:
        TrialsError: the folder cannot be used.
        ValueError: one of the variants cannot be trained, or there is nothing to resume from.
    """
    trials = _kept_trials(out, results, resume=resume)
    with noted_places() as noted:
        split = next(iter(variants)).split(places)
    require_trainable(variants, split, places)
    if out is not None:
        _make(out)
    return Bench(console, split, places, trials, Origin.of(places, noted, smoke=smoke))


def _kept_trials(out: Path | None, results: Sequence[str], *, resume: bool) -> Trials:
    if out is None:
        if resume:
            raise ValueError("--resume needs --out: the folder of the trials to go on with")
        return Trials()
    holds_trials = (out / _FILE).exists()
    if holds_trials and not resume:
        raise TrialsError(
            f"{out} holds trials already: add --resume to go on with them, or choose another folder"
        )
    for name in results:
        if not holds_trials and os.path.lexists(out / name):
            raise TrialsError(
                f"{out} holds a {name}, and no {_FILE} from which it came: it would be"
                " overwritten. Move it away, or choose another folder"
            )
    return Trials(out / _FILE)


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialsError(f"{out} cannot be made: {error}") from error


class Bench:
    """Makes trials of variants of one recipe, or takes those that were made.

    Args:
        console: shows how each goes.
        split: the data.
        places: where it came from.
        trials: those made so far.
        origin: of those that count.

    Attributes:
        used: the trials that were asked for so far, whether made now or before.
    """

    def __init__(
        self, console: Console, split: Split, places: Places, trials: Trials, origin: Origin
    ) -> None:
        self._console, self._split, self._places = console, split, places
        self._trials, self._origin = trials, origin
        self.used: list[Trial] = []

    def trials(
        self, title: str, recipe: Recipe, seeds: Iterable[int], *, is_private: bool = True
    ) -> list[Trial]:
        """One for each seed."""
        found = []
        for seed in seeds:
            found.append(self._trial(f"{title}, seed {seed}", recipe, seed, is_private))
            self.used.append(found[-1])
        return found

    def _trial(self, title: str, recipe: Recipe, seed: int, is_private: bool) -> Trial:
        with refusals():
            found = self._trials.get(recipe, seed, self._origin, is_private=is_private)
        if found is not None:
            return found

        def showing(recipe: Recipe, steps: int) -> AbstractContextManager[TrialDisplay]:
            return live(self._console, title, recipe, steps, 0)

        with plain_warnings():
            trial = make(
                recipe,
                self._split,
                self._places,
                seed,
                showing,
                is_private=is_private,
                origin=self._origin,
            )
        self._trials.add(trial)
        return trial

    def stopped(self) -> Stopped:
        """What Ctrl-C ends with."""
        made = f"stopped after {counted(len(self.used), 'trial')}"
        if self._trials.path is None:
            return Stopped(f"{made}, lost: give --out to keep them")
        return Stopped(f"{made}. Go on with: {resuming()}")


def as_json(found: Mapping[str, Any]) -> str:
    """An object for files and for `--json`."""
    return json.dumps(found, indent=2, allow_nan=False)
