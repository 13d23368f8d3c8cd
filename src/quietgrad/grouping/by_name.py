"""Grouping by patterns of parameter names."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import nn

from quietgrad.grouping.contract import Grouping, Partition
from quietgrad.grouping.parameters import trainable

Pattern = str | re.Pattern[str]
"""A glob for the whole name ("*.attn.*"), or a compiled regular expression to search it with."""

Patterns = Mapping[str, Pattern] | Sequence[tuple[str, Pattern]]
"""Group name -> pattern, or pairs of them, in which a group's name may occur several times."""

_REST = "rest"


@dataclass(frozen=True)
class ByName(Grouping):
    """Groups by parameter name; the first pattern that matches a parameter takes it.

    A string is a glob over the whole name, `re.compile(...)` is searched in it. Parameters no
    pattern matches are an error unless `rest=True` collects them in the group "rest", and so is a
    pattern that takes no parameter.

    Example: `ByName({"attention": "*.attn.*", "norms": re.compile(r"ln_[0-9]")}, rest=True)`
    """

    patterns: Patterns
    rest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _pairs(self.patterns)
        object.__setattr__(self, "patterns", pairs)
        if not pairs:
            raise ValueError("ByName needs at least one pattern")
        if self.rest and any(group == _REST for group, _ in pairs):
            raise ValueError(f"rest=True makes a group {_REST!r}; give that pattern another name")

    def partition(self, model: nn.Module) -> Partition:
        """Group name -> what its patterns take, then "rest"."""
        pairs = _pairs(self.patterns)
        taken: list[list[str]] = [[] for _ in pairs]
        left: list[str] = []
        for name in trainable(model):
            first = next((i for i, (_, pattern) in enumerate(pairs) if _match(pattern, name)), None)
            (left if first is None else taken[first]).append(name)
        _require_used(pairs, taken)
        if left and not self.rest:
            raise ValueError(f"no pattern matches {left}; add patterns, or set rest=True")
        groups: dict[str, list[str]] = {}
        for (group, _), names in zip(pairs, taken, strict=True):
            groups.setdefault(group, []).extend(names)
        return {**groups, _REST: left} if left else groups


def _pairs(patterns: Patterns) -> tuple[tuple[str, Pattern], ...]:
    """The (group, pattern) pairs in order, each checked."""
    pairs = tuple(patterns.items() if isinstance(patterns, Mapping) else patterns)
    for pair in pairs:
        match pair:
            case (str(), str() | re.Pattern()):
                continue
        raise TypeError(f"ByName takes (group name, glob or re.Pattern), got {pair!r}")
    return pairs


def _match(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    return fnmatchcase(name, pattern)


def _require_used(pairs: Sequence[tuple[str, Pattern]], taken: Sequence[Sequence[str]]) -> None:
    idle = [pair for pair, names in zip(pairs, taken, strict=True) if not names]
    if idle:
        raise ValueError(
            "these patterns take no trainable parameter (misspelt, all frozen, or an earlier"
            f" pattern matches first): {idle}"
        )
