"""Scores as people read them."""

_IN_PER_CENT = ("accuracy", "f1")


def title(name: str) -> str:
    """Of a column or row."""
    return name.replace("_", " ")


def score(name: str, value: float) -> str:
    """Shares in per cent, everything else as a number."""
    if name.endswith(_IN_PER_CENT):
        return f"{value:.1%}"
    return f"{value:.3f}"


def counted(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
