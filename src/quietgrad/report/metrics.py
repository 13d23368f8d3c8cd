"""Figures by epoch: `metrics.jsonl`, or what a user hands over."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from quietgrad.report.plain import plain

NOT_MEASURED = ("epoch", "steps", "epsilon", "seconds")
_EPOCH = "epoch"
_INFINITE = plain(math.inf)
_TRAINING = ("train", "training")
# Ends at whatever is no letter, and where a capital begins the next word.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SHARES = ("accuracy", "precision", "recall", "share")


def checked_line(line: object, where: str) -> dict[str, Any]:
    """One epoch as plain data; ValueError if it is none."""
    if not isinstance(line, Mapping):
        raise ValueError(f"{where} is not an epoch: expected a mapping with 'epoch' and figures")
    found: dict[str, Any] = plain(line)
    if not is_number(found.get(_EPOCH)):
        raise ValueError(f"{where} has no number of its epoch: expected 'epoch'")
    for name in ("steps", "epsilon"):
        if not _is_number_or_nothing(found.get(name)):
            raise ValueError(f"{where} has {name} {found[name]!r}: expected a number")
    return found


def read_lines(text: str, where: str) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """All epochs of a file, and notices; a last line that was not finished is left out.

    Raises:
        ValueError: another line is no epoch.
    """
    whole, _, rest = text.rpartition("\n")
    lines = [line for line in whole.split("\n") if line.strip()]
    found = [_parsed(line, f"{where}, line {n}") for n, line in enumerate(lines, start=1)]
    notices = []
    if rest.strip():
        try:
            found.append(_parsed(rest, where))
        except ValueError:
            notices.append(f"{where} ends in the middle of a line, which was left out.")
    return tuple(found), tuple(notices)


def measured_names(lines: tuple[dict[str, Any], ...]) -> list[str]:
    """The names of all figures but those that are about the run itself, as they come."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [
        name
        for name in names
        if name not in NOT_MEASURED and any(is_number(line.get(name)) for line in lines)
    ]


def series(lines: tuple[dict[str, Any], ...], name: str) -> list[tuple[float, float]]:
    """A figure by epoch, where there is one."""
    return [(float(line[_EPOCH]), float(line[name])) for line in lines if is_number(line.get(name))]


def is_share(lines: tuple[dict[str, Any], ...], name: str) -> bool:
    """Whether a figure is a share of one, to be shown in per cent."""
    values = [value for _, value in series(lines, name)]
    return any(word in name for word in _SHARES) and all(0 <= each <= 1 for each in values)


def is_number(value: object) -> bool:
    """A finite number that fits a curve."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def seem_private(lines: tuple[dict[str, Any], ...]) -> list[str]:
    """The names of figures that seem to be read from training data, as they come."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [name for name in names if _is_of_training(name)]


def _is_of_training(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    return name.lower().startswith("train") or any(word in _TRAINING for word in words)


def _is_number_or_nothing(value: object) -> bool:
    if value is None or value == _INFINITE:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        return checked_line(json.loads(line), where)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
