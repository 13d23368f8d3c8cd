"""A place in the sequence of passes, and the bookmark that saves it as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quietgrad._checks import require_count
from quietgrad.sampling.draws import Draws, Resumption
from quietgrad.sampling.keys import is_key

_FIELDS = ("pass", "step", "key", "sampling")


@dataclass(frozen=True)
class Position:
    """Where a loader goes on.

    Attributes:
        pass_number: the pass, from 0.
        step: the next step of that pass, from 0.
        key: the key of that pass, if it is one to go on with.
    """

    pass_number: int = 0
    step: int = 0
    key: int | None = None

    def next_pass(self) -> "Position":
        """The beginning of the pass after this one."""
        return Position(self.pass_number + 1)


def to_bookmark(position: Position, draws: Draws) -> dict[str, Any]:
    """The position as plain data."""
    keep = _needs_key(position.step, draws)
    return {
        "pass": position.pass_number,
        "step": position.step,
        "key": position.key if keep else None,
        "sampling": draws.description,
    }


def from_bookmark(bookmark: Mapping[str, Any], draws: Draws) -> Position:
    """What `to_bookmark` wrote; ValueError if it did not write this, or for other draws."""
    if not isinstance(bookmark, Mapping) or set(bookmark) != set(_FIELDS):
        raise ValueError(
            f"not a bookmark: {bookmark!r}. Expected the fields {', '.join(_FIELDS)}, as"
            " BatchLoader.bookmark returns them"
        )
    pass_number = require_count("pass", bookmark["pass"], at_least=0)
    step = require_count("step", bookmark["step"], at_least=0)
    # At the beginning of a pass there is nothing to continue, so any sampling may take over.
    if step > 0:
        _require_same_draws(step, bookmark["sampling"], draws)
    return Position(pass_number, step, _checked_key(bookmark["key"], step, draws))


def _require_same_draws(step: int, sampling: object, draws: Draws) -> None:
    if sampling != draws.description:
        raise ValueError(
            f"the bookmark is in the middle of a pass of other batches: expected"
            f" {draws.description!r}, got {sampling!r}. Go on with the settings it was made with"
        )
    if step >= draws.length:
        raise ValueError(f"step={step} is not valid: a pass has {draws.length} steps")


def _checked_key(key: Any, step: int, draws: Draws) -> int | None:
    if not _needs_key(step, draws):
        # A Poisson key that somebody could have read must not be drawn with.
        if key is not None:
            raise ValueError("key is not valid: no key is saved at this place, expected None")
        return None
    if not is_key(key):
        # Another permutation could take a sample for the second time in this pass.
        raise ValueError("key is not valid: expected the integer that was saved with this pass")
    return int(key)


def _needs_key(step: int, draws: Draws) -> bool:
    return step > 0 and draws.resumption is Resumption.SAME_KEY
