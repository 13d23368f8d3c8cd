"""What commands that train several times have in common."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import click
from rich.console import Console

from quietgrad.cli.failures import Stopped
from quietgrad.cli.live import live
from quietgrad.recipes import Places, Recipe, Split
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


def kept_trials(out: Path | None, *, resume: bool) -> Trials:
    """Those in a folder, which is made if need be.

    Raises:
        TrialsError: there are trials in it, and they are not to be resumed; or it cannot be made.
        ValueError: there is nothing to resume from.
    """
    if out is None:
        if resume:
            raise ValueError("--resume needs --out: the folder of the trials to go on with")
        return Trials()
    if (out / _FILE).exists() and not resume:
        raise TrialsError(
            f"{out} holds trials already: add --resume to go on with them, or choose another folder"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrialsError(f"{out} cannot be made: {error}") from error
    return Trials(out / _FILE)


class Bench:
    """Makes trials of variants of one recipe, or takes those that were made.

    Args:
        console: shows how each goes.
        split: the data.
        places: where it came from.
        trials: those made so far.
    """

    def __init__(self, console: Console, split: Split, places: Places, trials: Trials) -> None:
        self._console, self._split, self._places = console, split, places
        self._trials = trials

    def trials(
        self, title: str, recipe: Recipe, seeds: Iterable[int], *, is_private: bool = True
    ) -> list[Trial]:
        """One for each seed."""
        return [self._trial(f"{title}, seed {seed}", recipe, seed, is_private) for seed in seeds]

    def _trial(self, title: str, recipe: Recipe, seed: int, is_private: bool) -> Trial:
        found = self._trials.get(recipe, seed, is_private=is_private)
        if found is not None:
            return found

        def showing(recipe: Recipe, steps: int) -> AbstractContextManager[Shown]:
            return live(self._console, title, recipe, steps, 0)

        trial = make(recipe, self._split, self._places, seed, showing, is_private=is_private)
        self._trials.add(trial)
        return trial

    def stopped(self, again: str) -> Stopped:
        """What Ctrl-C ends with."""
        made = len(self._trials.made)
        if self._trials.path is None:
            return Stopped(f"stopped after {made} trials, which are lost: give --out to keep them")
        return Stopped(f"stopped after {made} trials. Go on with: {again} --resume")
