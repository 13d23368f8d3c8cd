"""The gate every grouping passes: each trainable parameter in exactly one group."""

from collections import Counter
from collections.abc import Iterable, Sequence

from torch import nn

from quietgrad.grouping.contract import Group
from quietgrad.grouping.parameters import trainable
from quietgrad.grouping.radii import require_positive


def validate(groups: Sequence[Group], model: nn.Module) -> tuple[Group, ...]:
    """The groups as a tuple, or an error that lists what is missing, doubled, frozen or unknown.

    A parameter in no group would be released without clipping, one in two groups would be counted
    twice: either breaks the sensitivity the noise is scaled with.
    """
    for group in groups:
        if not isinstance(group, Group):
            raise TypeError(f"a grouping must return Group objects, got {type(group).__name__}")
        require_positive(group.radius, f"the radius of group {group.name!r}")
    expected = trainable(model)
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    placed = Counter(name for group in groups for name in group.parameters)
    present = set(expected)
    flaws = {
        "in no group": [name for name in expected if name not in placed],
        "in several groups": [name for name, times in placed.items() if times > 1],
        "frozen, or tied to an earlier name": [n for n in placed if n in known - present],
        "not in the model": [name for name in placed if name not in known],
        "group names used twice": _repeated(group.name for group in groups),
    }
    found = "; ".join(f"{flaw}: {names}" for flaw, names in flaws.items() if names)
    if found:
        raise ValueError(f"the groups do not fit {type(model).__name__}: {found}")
    return tuple(groups)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]
