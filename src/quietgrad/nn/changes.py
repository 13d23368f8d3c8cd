"""What was changed in a model, in words."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Change:
    """One change, or one that was asked for and could not be made.

    Attributes:
        path: of the module in the model that was given; empty for the model itself.
        was: what it was.
        now: what it is.
        left_because: why it is what it was, although a change was asked for.
    """

    path: str
    was: str
    now: str
    left_because: str = ""

    @property
    def made(self) -> bool:
        """Whether anything was changed."""
        return not self.left_because

    def __str__(self) -> str:
        place = self.path or "the model itself"
        if self.made:
            return f"{place}: {self.was} -> {self.now}"
        return f"{place}: {self.was} left as it is: {self.left_because}"


@dataclass(frozen=True)
class Hardened:
    """A changed copy of a model, and what was changed in it.

    Attributes:
        model: the copy.
        changes: in the order in which they were made; empty if nothing had to be.
    """

    model: nn.Module
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        kind = type(self.model).__name__
        if not self.changes:
            return f"{kind}: nothing changed"
        made = sum(change.made for change in self.changes)
        left = len(self.changes) - made
        counts = f"{made} changed" + (f", {left} left as they were" if left else "")
        return "\n".join([f"{kind}: {counts}", *(f"  {change}" for change in self.changes)])
