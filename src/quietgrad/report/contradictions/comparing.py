"""The same thing, stated in two places."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

SLACK = 1e-6  # another machine's last digits


def differing(
    where: str, said: Mapping[str, Any], elsewhere: str, known: Mapping[str, Any]
) -> Iterator[str]:
    """A sentence for every name that both state, and state differently.

    Args:
        where: names the first of the two.
        said: what it states.
        elsewhere: names the second.
        known: what that states.
    """
    for name, value in said.items():
        if name in known and not is_same(value, known[name]):
            yield f"The {where} says {name} {value!r}, and the {elsewhere} {known[name]!r}."


def is_same(stated: Any, value: Any) -> bool:
    """Whether two values say the same; numbers may differ in their last digits."""
    if _is_number(stated) and _is_number(value):
        return math.isclose(stated, value, rel_tol=SLACK)
    return type(stated) is type(value) and bool(stated == value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300  # what is no float cannot be close to one
