"""How the radius R of the whole gradient is divided among M groups."""

from collections.abc import Mapping, Sequence
from math import hypot, isclose, isfinite, sqrt

Numbers = Sequence[float] | Mapping[str, float]
"""One number per group, in the order of the groups or by group name."""

_DEFAULT_RADIUS = 1.0


def radii_of(
    names: Sequence[str], radius: float, proportions: Numbers | None, radii: Numbers | None
) -> tuple[float, ...]:
    """R/sqrt(M) for each of the named groups, or R a_m/|a| by proportions, or the radii given."""
    if radii is not None:
        return _by_group(radii, names, "radii")
    if proportions is not None:
        shares = _by_group(proportions, names, "proportions")
        return tuple(radius * (share / hypot(*shares)) for share in shares)
    return (radius / sqrt(len(names)),) * len(names)


def total(radii: Numbers, stated: float) -> float:
    """R = sqrt(sum R_m^2); a radius stated besides must agree with it."""
    derived = hypot(*_values(radii))
    if stated != _DEFAULT_RADIUS and not isclose(stated, derived):
        raise ValueError(
            f"radius={stated:g} contradicts radii, whose total is {derived:g}: leave radius out, or"
            " give proportions instead of radii"
        )
    return derived


def frozen_numbers(numbers: Numbers, field: str) -> Numbers:
    """A copy the caller cannot change, of positive finite numbers."""
    if not _is_collection(numbers):
        raise TypeError(
            f"{field} must be a sequence of numbers or a mapping from group name to number,"
            f" got {type(numbers).__name__}"
        )
    if not numbers:
        raise ValueError(f"{field} is empty; leave it out for equal radii")
    keys = numbers if isinstance(numbers, Mapping) else range(len(numbers))
    for key, value in zip(keys, _values(numbers), strict=True):
        require_positive(value, f"{field}[{key!r}]")
    return dict(numbers) if isinstance(numbers, Mapping) else tuple(numbers)


def require_positive(value: float, what: str) -> None:
    """Raise an error that names `what` unless the value is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, got {type(value).__name__}")
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{what} must be positive and finite, got {value}")


def _by_group(numbers: Numbers, names: Sequence[str], field: str) -> tuple[float, ...]:
    """The number of each group, in the order of the groups."""
    if isinstance(numbers, Mapping):
        unknown, missing = set(numbers) - set(names), set(names) - set(numbers)
        if unknown or missing:
            raise ValueError(
                f"{field} must name every group once; unknown: {sorted(unknown)},"
                f" missing: {sorted(missing)}; the groups are {list(names)}"
            )
        return tuple(numbers[name] for name in names)
    if len(numbers) != len(names):
        raise ValueError(
            f"{field} has {len(numbers)} numbers for {len(names)} groups: {list(names)}"
        )
    return tuple(numbers)


def _is_collection(value: object) -> bool:
    return isinstance(value, Sequence | Mapping) and not isinstance(value, str)


def _values(numbers: Numbers) -> tuple[float, ...]:
    return tuple(numbers.values() if isinstance(numbers, Mapping) else numbers)
