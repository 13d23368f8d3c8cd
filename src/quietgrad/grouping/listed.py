"""Groups that are written out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from quietgrad.grouping.contract import Grouping, Partition

Lists = Mapping[str, Iterable[str]] | Sequence[tuple[str, Iterable[str]]]
"""Group name -> names of its parameters, or pairs of them."""


@dataclass(frozen=True)
class Listed(Grouping):
    """Groups with their parameters by full name, such as `quietgrad.plan` finds them.

    Together they must be every trainable parameter of the model, once.

    Example: `Listed({"body": ["0.weight", "0.bias"], "head": ["2.weight", "2.bias"]})`
    """

    lists: Lists

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _pairs(self.lists)
        object.__setattr__(self, "lists", pairs)
        if not pairs:
            raise ValueError("Listed needs at least one group")
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"group names used twice in {[group for group, _ in pairs]}")

    def partition(self, model: nn.Module) -> Partition:
        """As they were listed."""
        return dict(_pairs(self.lists))


def _pairs(lists: Lists) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The groups in order, each checked."""
    pairs = tuple(lists.items() if isinstance(lists, Mapping) else lists)
    for pair in pairs:
        match pair:
            case (str(), list() | tuple() as names) if all(isinstance(name, str) for name in names):
                continue
        raise TypeError(f"Listed takes (group name, list of parameter names), got {pair!r}")
    return tuple((group, tuple(names)) for group, names in pairs)
