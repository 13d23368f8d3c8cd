"""What commands that train a recipe several times share: `compare` and `sweep`."""

import math
import os
import shlex
import statistics
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from click.core import ParameterSource
from rich.console import Console
from scipy.stats import t as student

from quietgrad._progress import announced
from quietgrad.cli.common import (
    Stopped,
    counted,
    plain_warnings,
    print_json,
    refusals,
    title,
    to_json,
)
from quietgrad.cli.options import Decorator, add_options
from quietgrad.cli.progress import TrainingDisplay
from quietgrad.cli.recipe_options import Folder, RequestedOptions, errors_of_recipe
from quietgrad.clipping import resolve as resolve_clipping
from quietgrad.data.sources import noted_places
from quietgrad.recipes import load
from quietgrad.recipes.recipe import Recipe, Settings
from quietgrad.recipes.training import attach
from quietgrad.recipes.trials import Origin, Trial, TrialDisplay, Trials, TrialsError, make

_FILE = "trials.jsonl"
_CONFIDENCE = 0.95
# They decide how a figure is computed, not which figure.
_WITHOUT_EFFECT = ("physical_batch_size", "noise")
# In every title; and a paper's figure is that for the very epsilon.
_ALWAYS_IN_TITLE = ("clipping", "epsilon")

Changes = dict[str, tuple[Any, Any]]
"""Settings by name: the value here, and that of the recipe."""


def trial_options(*, seeds: int, each: str) -> Decorator:
    """Options `seeds`, `out` and `resume`: by default so many trainings of each variant."""
    trainings = f"Seeds per {each}: 0, 1, ..."
    options: Sequence[Decorator] = (
        click.option("--seeds", type=int, default=seeds, show_default=True, help=trainings),
        click.option("--out", type=Folder(), help="Folder for the trials and the results."),
        click.option(
            "--resume",
            is_flag=True,
            help="Keep the trials in --out and run only the missing ones.",
        ),
    )
    return lambda command: add_options(command, options)


# Settings that were changed, in words.


def changes(recipe: Recipe) -> Changes:
    """Settings that are not the recipe's own for this clipping function."""
    here = asdict(recipe.settings)
    own = load(recipe.target or recipe.name)
    there = asdict(own.changed(clipping=recipe.settings.clipping).settings)
    return {
        name: (value, there[name])
        for name, value in here.items()
        if value != there[name] and name not in _WITHOUT_EFFECT
    }


def describe_changes(found: Changes, *, smoke: bool = False) -> str:
    """What was changed, as a list in words; empty if nothing was."""
    parts = ["synthetic data and a small model (--smoke)"] if smoke else []
    for name, (here, there) in found.items():
        if name in _ALWAYS_IN_TITLE:
            continue
        if name == "limit" and here is not None:
            parts.append(f"the first {here:,} samples (recipe: all)")
        elif name == "epochs":
            parts.append(f"{counted(here, 'epoch')} (recipe: {there})")
        else:
            parts.append(f"{title(name)} {_value(here)} (recipe: {_value(there)})")
    return ", ".join(parts)


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_beside_papers(found: Changes, *, smoke: bool) -> bool:
    """Whether figures may be read beside those of papers, each of which has its own accountant."""
    return not smoke and not found.keys() - {*_ALWAYS_IN_TITLE, "accountant"}


def conditions(settings: Settings, swept: Collection[str] = ()) -> str:
    """What a title says about a training, but for settings that are swept over."""
    parts = [] if "epsilon" in swept else [f"epsilon {settings.epsilon:g}"]
    parts.append(counted(settings.epochs, "epoch"))
    if settings.limit is not None:
        parts.append(f"the first {settings.limit:,} samples")
    return ", ".join(parts)


class Interval(NamedTuple):
    """A mean with the margin of its 95 % confidence interval.

    The margin is None for a single value, and where a value is not finite.
    """

    mean: float
    margin: float | None

    def text(self, scale: float = 1.0) -> str:
        """As people write it."""
        margin = "" if self.margin is None else f" ± {self.margin * scale:.2f}"
        return f"{self.mean * scale:.2f}{margin}"


def interval(values: Sequence[float]) -> Interval:
    """The interval of the mean of a few independent values (Student's t)."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2 or not math.isfinite(mean):
        return Interval(mean, None)
    quantile = float(student.ppf((1 + _CONFIDENCE) / 2, count - 1))
    return Interval(mean, quantile * statistics.stdev(values) / count**0.5)


# Making trials.


def variants_of(asked: RequestedOptions, names: Sequence[str]) -> dict[str, Recipe]:
    """The recipe with each clipping function: what is given wins over what is tuned for it.

    Args:
        asked: the recipe and its other settings.
        names: of clipping functions; none for the recipe's own.

    Raises:
        ValueError: one of them is not known, or does not go with the settings.
    """
    if not names:
        own = asked.resolved()
        return {own.settings.clipping: own}
    load(asked.recipe)  # its module may register some of them
    for name in names:
        resolve_clipping(name)
    return {
        name: replace(asked, changes={**asked.changes, "clipping": name}).resolved()
        for name in names
    }


def split_clippings(asked: RequestedOptions, default: str) -> tuple[RequestedOptions, list[str]]:
    """The names in --clipping, and what was asked for besides."""
    rest = dict(asked.changes)
    names = [name.strip() for name in rest.pop("clipping", default).split(",")]
    return replace(asked, changes=rest), [name for name in names if name]


class Bench:
    """Makes trials of variants of one recipe, or takes those that were made.

    Its folder is made once the variants are known to train.

    Args:
        console: shows how each training goes.
        variants: of the recipe, that differ in more than numbers.
        asked: the recipe and its options.
        out: the folder; None to keep nothing.
        resume: whether the trials in it count.
        results: names of files that will be written into it.

    Attributes:
        used: the trials that were asked for so far, whether made now or before.

    Raises:
        TrialsError: the folder cannot be used.
        ValueError: one of the variants cannot be trained, or there is nothing to resume from.
    """

    def __init__(
        self,
        console: Console,
        variants: Collection[Recipe],
        asked: RequestedOptions,
        *,
        out: Path | None,
        resume: bool,
        results: Sequence[str],
    ) -> None:
        self._console, self._places, self._device = console, asked.places, asked.device
        self.used: list[Trial] = []
        self._trials = _kept_trials(out, results, resume=resume)
        recipe = next(iter(variants))
        with noted_places() as noted, errors_of_recipe(recipe), announced("Loading the data"):
            self._split = recipe.split(asked.places)
        # Refuse now what would be refused after hours: an engine is attached, and detached.
        model = None
        with (
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
            errors_of_recipe(recipe),
            announced("Trying all variants"),
        ):
            warnings.simplefilter("ignore")  # the trials themselves will warn
            for variant in variants:
                if model is None:
                    model = variant.model(asked.places).to(asked.device)
                attach(variant, self._split, model, seed=0).detach()
        if out is not None:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TrialsError(f"{out} cannot be made: {error}") from error
        if recipe.target is not None:  # trials of another version of it do not count
            noted.append(f"{recipe.target} sha256:{recipe.digest}")
        self._origin = Origin.of(asked.places, noted, smoke=asked.smoke)

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
            return TrainingDisplay(self._console, title, recipe, steps)

        with plain_warnings(), errors_of_recipe(recipe):
            trial = make(
                recipe,
                self._split,
                self._places,
                seed,
                showing,
                is_private=is_private,
                origin=self._origin,
                device=self._device,
            )
        self._trials.add(trial)
        return trial

    @contextmanager
    def resume_hint_on_interrupt(self) -> Iterator[None]:
        """Say in one line how to resume after Ctrl-C."""
        try:
            yield
        except KeyboardInterrupt:
            made = f"stopped after {counted(len(self.used), 'trial')}"
            if self._trials.path is None:
                raise Stopped(f"{made}, lost: give --out to keep them") from None
            raise Stopped(f"{made}. Resume with: {_resuming_command()}") from None


def _kept_trials(out: Path | None, results: Sequence[str], *, resume: bool) -> Trials:
    if out is None:
        if resume:
            raise ValueError("--resume needs --out: the folder of the trials to resume")
        return Trials()
    holds_trials = (out / _FILE).exists()
    if holds_trials and not resume:
        raise TrialsError(
            f"{out} holds trials already: add --resume to keep them, or choose another folder"
        )
    for name in results:
        if not holds_trials and os.path.lexists(out / name):
            raise TrialsError(
                f"{out} holds a {name}, and no {_FILE} from which it came: it would be"
                " overwritten. Move it away, or choose another folder"
            )
    return Trials(out / _FILE)


def _resuming_command() -> str:
    """The running command with all that was said, and `--resume`: followed to the letter."""
    context = click.get_current_context()
    words = ["quietgrad", context.info_name or ""]
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is not ParameterSource.COMMANDLINE or name == "resume":
            continue
        value, option = context.params[name], parameter.opts[-1]
        values = value if isinstance(value, tuple) else (value,)
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words.append(option)
        else:
            words += [word for each in values for word in (option, str(each))]
    return shlex.join([*words, "--resume"])


def finish(
    found: dict[str, Any],
    show: Callable[[Console], None],
    console: Console,
    file: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print what was found, and write it into a file if there is one."""
    text = to_json(found)
    if file is not None:
        with refusals():
            file.write_text(text + "\n", encoding="utf-8")
    if as_json:
        print_json(found)
    else:
        show(console)
