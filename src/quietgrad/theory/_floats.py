"""Formulas at arguments that are each valid, and too far apart to be computed with."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def within_floats(formula: Callable[P, R]) -> Callable[P, R]:
    """A formula that raises ValueError where its terms leave the range of floats."""

    @wraps(formula)
    def computed(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            value = formula(*args, **kwargs)
        except (OverflowError, ZeroDivisionError) as error:
            raise _out_of_range(formula.__name__, args, kwargs) from error
        if isinstance(value, float) and math.isnan(value):
            raise _out_of_range(formula.__name__, args, kwargs)
        return value

    return computed


def _out_of_range(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> ValueError:
    given = ", ".join([*map(repr, args), *(f"{key}={value!r}" for key, value in kwargs.items())])
    return ValueError(
        f"{name}({given}): its terms are beyond what floating-point numbers hold. Expected "
        "arguments of usual size"
    )
