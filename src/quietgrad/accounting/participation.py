"""How samples come to take part in steps, in the terms an accountant needs.

These say what was done. `quietgrad.sampling` has the samplers that do it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from quietgrad._checks import require_count, require_rate


@dataclass(frozen=True)
class Poisson:
    """Each sample joins each step with the same probability, independently of everything else.

    Attributes:
        rate: that probability, in (0, 1].
    """

    kind: ClassVar[str] = "poisson"
    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", require_rate("rate", self.rate))


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson sampling in which a draw above `largest` is cut down to a uniform subset of it.

    Cutting couples the samples: whether one takes part depends on how many others do. What that
    costs grows with the chance of a cut, so `largest` should lie several deviations above the mean.

    Attributes:
        rate: probability with which each sample is drawn, in (0, 1].
        largest: most samples in a step.
        population: number of samples in the data set.
    """

    kind: ClassVar[str] = "truncated-poisson"
    rate: float
    largest: int
    population: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", require_rate("rate", self.rate))
        object.__setattr__(self, "largest", require_count("largest", self.largest, at_least=1))
        count = require_count("population", self.population, at_least=1)
        object.__setattr__(self, "population", count)


@dataclass(frozen=True)
class Passes:
    """In each pass of `length` steps, every sample takes part in at most `times` of them.

    Shuffled batches of a fixed size are passes with `times=1`. Nothing is claimed to be random, so
    nothing is amplified: a pass counts as `times` releases of the whole data set.

    Attributes:
        length: steps in a pass.
        times: the most steps of a pass that one sample takes part in.
    """

    kind: ClassVar[str] = "passes"
    length: int
    times: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", require_count("length", self.length, at_least=1))
        object.__setattr__(self, "times", require_count("times", self.times, at_least=1))

    def count(self, steps: int) -> int:
        """The fewest passes that have this many steps."""
        return -(-steps // self.length)


@dataclass(frozen=True)
class FullBatch:
    """Every sample takes part in every step."""

    kind: ClassVar[str] = "full-batch"


Participation = Poisson | TruncatedPoisson | Passes | FullBatch

_KINDS: dict[str, type[Participation]] = {
    cls.kind: cls for cls in (Poisson, TruncatedPoisson, Passes, FullBatch)
}


def to_dict(participation: Participation) -> dict[str, Any]:
    """As plain data, for files."""
    return {"kind": participation.kind} | asdict(participation)


def from_dict(data: Mapping[str, Any]) -> Participation:
    """What `to_dict` wrote; ValueError if it did not write this."""
    fields = dict(data)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"unknown kind of sampling {kind!r}: expected one of {', '.join(_KINDS)}")
    try:
        return _KINDS[kind](**fields)
    except TypeError as error:
        raise ValueError(f"not a {kind} sampling: {error}") from error
