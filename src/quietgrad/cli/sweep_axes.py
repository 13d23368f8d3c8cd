"""Which settings a sweep goes over, and which values they take."""

from collections.abc import Sequence
from dataclasses import dataclass

from quietgrad._names import unknown_name
from quietgrad.recipes.settings import Settings

_FIELDS = {
    "lr": "learning_rate",
    "radius": "radius",
    "stability": "stability",
    "momentum": "momentum",
    "epsilon": "epsilon",
    "weight-decay": "weight_decay",
    "inner-momentum": "inner_momentum",
}
_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
_DEFAULTS: dict[str, tuple[float, ...]] = {
    "radius": (0.001, 0.01, 0.1, 1.0, 10.0),
    "stability": (0.001, 0.01, 0.1, 1.0),
    "momentum": (0.0, 0.5, 0.9),
    "epsilon": (1.0, 2.0, 3.0, 8.0),
    "weight-decay": (0.0, 0.0001, 0.001, 0.01),
    "inner-momentum": (0.08, 0.3),
}


@dataclass(frozen=True)
class Axis:
    """A setting and its values.

    Attributes:
        name: as on the command line.
        values: it takes.
    """

    name: str
    values: tuple[float, ...]

    @property
    def field(self) -> str:
        """The setting it changes."""
        return _FIELDS[self.name]


def axes_of(over: Sequence[str], settings: Settings) -> list[Axis]:
    """What `--over` asks for: `lr,radius`, or `lr=0.1,0.2,0.4` for values of one's own.

    Raises:
        ValueError: it is not understood, or there are more than two.
    """
    axes = [axis for part in over for axis in _parsed(part, settings)]
    if not 1 <= len({axis.name for axis in axes}) == len(axes) <= 2:
        raise ValueError(f"--over {' --over '.join(over)}: expected one or two different settings")
    return axes


def _parsed(part: str, settings: Settings) -> list[Axis]:
    name, given, values = part.partition("=")
    if not given:
        return [Axis(_known(each), _default(each, settings)) for each in part.split(",")]
    try:
        numbers = tuple(dict.fromkeys(float(value) for value in values.split(",")))
    except ValueError:
        raise ValueError(
            f"--over {part}: expected numbers with commas between them, as in lr=0.1,0.2"
        ) from None
    return [Axis(_known(name), tuple(sorted(numbers)))]


def _known(name: str) -> str:
    if name not in _FIELDS:
        raise unknown_name("setting to sweep over", name, _FIELDS)
    return name


def _default(name: str, settings: Settings) -> tuple[float, ...]:
    if name == "lr":
        return tuple(settings.learning_rate * factor for factor in _AROUND)
    return _DEFAULTS[name]
