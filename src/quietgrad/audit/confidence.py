"""How sure an audit is to be."""

from quietgrad._checks import require_delta


def require_confidence(value: object) -> float:
    """A probability in (0, 1), ends excluded."""
    try:
        return require_delta("confidence", value)
    except ValueError:
        raise ValueError(
            f"confidence={value!r} is not valid: expected a probability in (0, 1) such as 0.95, "
            "with which the bound is to hold"
        ) from None
