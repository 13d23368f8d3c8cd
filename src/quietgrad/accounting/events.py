"""What happened to the data: plain, frozen records that any accountant can read."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, get_args

from quietgrad._checks import require_choice, require_count, require_positive, require_rate

Adjacency = Literal["add-remove-one", "replace-one", "zero-out-one"]
"""How two neighbouring data sets differ.

- `add-remove-one`: one has a sample more. The default, and what DP-SGD papers mean.
- `replace-one`: one sample is exchanged for another; the number of samples is public. A sum of
  clipped gradients moves up to twice as far, so the same noise gives a larger epsilon.
- `zero-out-one`: one sample is exchanged for one without a gradient; the number is public.
"""

ADD_REMOVE: Final = "add-remove-one"
REPLACE: Final = "replace-one"
ZERO_OUT: Final = "zero-out-one"

ADJACENCIES: tuple[Adjacency, ...] = get_args(Adjacency)


def require_adjacency(value: object) -> Adjacency:
    """The relation of this name."""
    return require_choice("adjacency", value, ADJACENCIES)


def largest_move(adjacency: Adjacency) -> float:
    """How far a neighbour moves an unsampled sum, in units of one sample's largest gradient."""
    return 2.0 if adjacency == REPLACE else 1.0


_LONGEST_UNIT = 40
_PEOPLE = {"person": "people", "child": "children", "man": "men", "woman": "women"}


@dataclass(frozen=True)
class Unit:
    """What data sets differ in, where it is more than a record: a patient, with all records.

    Attributes:
        name: what one is called.
        records: most records of one that take part in a step. No guarantee depends on it.
    """

    name: str
    records: int

    def __post_init__(self) -> None:
        name = self.name
        is_words = isinstance(name, str) and name.replace("-", " ").replace(" ", "").isalpha()
        if not is_words or len(name) > _LONGEST_UNIT or name != " ".join(name.split()):
            raise ValueError(
                f"unit={name!r} is not valid: expected what one unit is called, in the singular,"
                " such as 'patient'"
            )
        count = require_count("records_per_unit", self.records, at_least=1)
        object.__setattr__(self, "records", count)

    @property
    def plural(self) -> str:
        """What several are called."""
        *before, last = self.name.split(" ")
        if last.lower() in _PEOPLE:
            return " ".join([*before, _PEOPLE[last.lower()]])
        if last.endswith("y") and last[-2:-1] not in "aeiou":
            return f"{self.name[:-1]}ies"
        return f"{self.name}{'es' if last.endswith(('s', 'x', 'ch', 'sh')) else 's'}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for files."""
        return {"name": self.name, "records_per_unit": self.records}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Unit":
        """What `to_dict` wrote; ValueError if it did not write this."""
        try:
            return cls(data["name"], data["records_per_unit"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a unit: {data!r}") from error


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


_MOST_COUNTED = 2**63  # of what is computed with in 64 bits


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
        for name, value in (("largest", self.largest), ("population", count)):
            if value >= _MOST_COUNTED:
                raise ValueError(f"{name}={value} is not valid: expected an integer below 2^63")


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


NOISES = ("secure", "fast", "seeded")


@dataclass(frozen=True)
class GaussianEvent:
    """`steps` releases in a row of a sum of clipped gradients plus Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the noise over the largest gradient one sample can
            add to the sum (`engine.sensitivity`), whatever the adjacency.
        sampling: how samples came to take part.
        steps: how many such releases.
        passes: how many passes over the data these steps are part of, where `sampling` is by
            passes: one that changes its noise counts for each. None counts the fewest that have
            so many steps.
        noise: where the noise came from. It changes no epsilon, but what one is worth: "secure",
            "fast" (not cryptographic), or "seeded" (it can be recomputed, so nobody is protected).
        dataset: the name of the data set that was released from; None if it has no name.
    """

    mechanism: ClassVar[str] = "gaussian"
    noise_multiplier: float
    sampling: Participation
    steps: int = 1
    passes: int | None = None
    noise: str = field(default="secure", compare=False)
    dataset: str | None = None

    def __post_init__(self) -> None:
        # Plain Python numbers, whatever was passed, so that events can be saved and compared.
        sigma = require_positive("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", sigma)
        if not isinstance(self.sampling, Participation):
            raise TypeError(
                f"sampling={self.sampling!r} does not say how samples take part: expected for"
                " example quietgrad.accounting.Poisson(rate=0.01)"
            )
        object.__setattr__(self, "steps", require_count("steps", self.steps, at_least=0))
        if self.passes is None:
            passes = self.sampling.count(self.steps) if isinstance(self.sampling, Passes) else 0
        else:
            passes = require_count("passes", self.passes, at_least=0)
        object.__setattr__(self, "passes", passes)
        require_choice("noise", self.noise, NOISES)
        if self.dataset is not None:
            require_dataset("dataset", self.dataset)

    def same_mechanism(self, other: "GaussianEvent") -> bool:
        """Whether the two differ in nothing but how often they happened."""
        is_same = self.noise_multiplier == other.noise_multiplier and self.noise == other.noise
        return is_same and self.sampling == other.sampling and self.dataset == other.dataset

    def plus(self, other: "GaussianEvent") -> "GaussianEvent":
        """This event and then another of the same mechanism, as one."""
        assert self.same_mechanism(other)
        steps = self.steps + other.steps
        return replace(self, steps=steps, passes=self._passes + other._passes)

    def has_part(self, other: "GaussianEvent") -> bool:
        """Whether the other is the same, and happened no more often."""
        no_more = other.steps <= self.steps and other._passes <= self._passes
        return no_more and self.same_mechanism(other)

    def minus(self, part: "GaussianEvent") -> "GaussianEvent":
        """What is left of this event without its first part."""
        assert self.has_part(part)
        steps = self.steps - part.steps
        return replace(self, steps=steps, passes=self._passes - part._passes)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for files."""
        return {
            "mechanism": self.mechanism,
            "noise_multiplier": self.noise_multiplier,
            "sampling": to_dict(self.sampling),
            "steps": self.steps,
            "passes": self.passes,
            "noise": self.noise,
            **({} if self.dataset is None else {"dataset": self.dataset}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "GaussianEvent":
        """What `to_dict` wrote; ValueError if it did not write this."""
        try:
            fields = dict(data)
            if fields.pop("mechanism", None) != cls.mechanism:
                raise ValueError(f"unknown mechanism in {data!r}: expected {cls.mechanism!r}")
            sampling = from_dict(fields.pop("sampling"))
            return cls(sampling=sampling, **fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an event: {data!r}") from error

    @property
    def _passes(self) -> int:
        assert self.passes is not None  # set on creation
        return self.passes


_LONGEST_NAME = 200


def require_dataset(argument: str, value: object) -> str:
    """The name of a data set: one line of text."""
    is_name = isinstance(value, str) and value == " ".join(value.split()) and value.isprintable()
    if isinstance(value, str) and is_name and 0 < len(value) <= _LONGEST_NAME:
        return value
    raise ValueError(
        f"{argument}={value!r} is not valid: expected a name on one line, such as 'hospital A'"
    )


def concerning(
    events: Iterable["GaussianEvent"], dataset: str | None, disjoint: Iterable[str]
) -> tuple["GaussianEvent", ...]:
    """What was released from a data set, or may have been.

    A record of one of several disjoint data sets took no part in what was released from the others
    (parallel composition). Releases without a name, and from data sets that are not declared
    disjoint, may concern everybody.

    Args:
        events: all of them.
        dataset: its name.
        disjoint: names of data sets of which no two share a record.
    """
    apart = set(disjoint)
    if dataset not in apart:
        return tuple(events)
    others = apart - {dataset}
    return tuple(event for event in events if event.dataset not in others)


def require_event(value: object) -> GaussianEvent:
    """A record of what happened, and nothing that looks like one."""
    if isinstance(value, GaussianEvent):
        return value
    raise TypeError(
        f"expected a GaussianEvent, got {type(value).__name__}: record for example"
        " quietgrad.accounting.GaussianEvent(1.0, Poisson(rate=0.01))"
    )


_MOST_NOISE = 1e9  # more of it only leaves the range of floats: counted as this much


@dataclass(frozen=True)
class Release:
    """One sum plus Gaussian noise in which a sample takes part with probability `rate`.

    Attributes:
        noise_multiplier: standard deviation of the noise over one sample's largest gradient.
        rate: 1 if the sample takes part for certain.
        truncation: the sampling itself, if it is Poisson cut down to a largest batch.
    """

    noise_multiplier: float
    rate: float = 1.0
    truncation: TruncatedPoisson | None = None

    @property
    def is_certain(self) -> bool:
        """Whether every sample takes part: a plain Gaussian release."""
        return self.rate == 1 and self.truncation is None


Releases = dict[Release, int]
"""How often each kind of release happened. Composition does not depend on their order."""


def releases(events: Iterable[GaussianEvent], adjacency: Adjacency, *, added: int = 0) -> Releases:
    """Everything that happened, equal releases counted together.

    Args:
        events: what happened.
        adjacency: which data sets are neighbours.
        added: how many samples more than the data set the larger of the two has; where draws are
            cut, it matters.

    Raises:
        ValueError: the adjacency is one that the sampling of an event cannot promise.
    """
    merged: dict[tuple[float, Participation], GaussianEvent] = {}
    for event in events:
        key = (event.noise_multiplier, event.sampling)
        # Where noise came from changes no epsilon, and names were read before (`concerning`).
        alike = replace(event, noise=NOISES[0], dataset=None)
        merged[key] = merged[key].plus(alike) if key in merged else alike
    counts: Counter[Release] = Counter()
    for event in merged.values():
        if isinstance(event.sampling, Passes) and adjacency == ADD_REMOVE:
            raise ValueError(
                "batches of a fixed size show how many samples there are, so nothing can be"
                f" promised for adjacency={ADD_REMOVE!r}: pass adjacency='replace-one' (or"
                " 'zero-out-one'), or use Poisson sampling"
            )
        counts[_release(event, added)] += _count(event)
    return {release: count for release, count in counts.items() if count > 0}


def _release(event: GaussianEvent, added: int) -> Release:
    sigma = min(event.noise_multiplier, _MOST_NOISE)
    match event.sampling:
        case Poisson(rate):
            return Release(sigma, rate)
        case TruncatedPoisson(rate) as truncation:
            larger = replace(truncation, population=truncation.population + added)
            return Release(sigma, rate, larger)
        case Passes() | FullBatch():
            return Release(sigma)


def _count(event: GaussianEvent) -> int:
    if isinstance(event.sampling, Passes):
        # Never fewer passes than the steps need, whatever was written down.
        return event.sampling.times * max(event.passes or 0, event.sampling.count(event.steps))
    return event.steps
