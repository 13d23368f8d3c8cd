"""What commands that train several times have in common."""

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from quietgrad.cli.again import resuming
from quietgrad.cli.failures import Stopped, plain_warnings, refusals
from quietgrad.cli.live import live
from quietgrad.cli.scores import counted
from quietgrad.cli.variants import require_trainable
from quietgrad.data.places import noted_places
from quietgrad.recipes import Places, Recipe, Split
from quietgrad.recipes.origin import Origin
from quietgrad.recipes.trials import Shown, Trial, Trials, TrialsError, make

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

        def showing(recipe: Recipe, steps: int) -> AbstractContextManager[Shown]:
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
