"""What a privacy report says, as plain records: the page and the JSON show the same."""

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def plain(value: Any) -> Any:
    """As dictionaries, lists, strings and finite numbers; infinity becomes a word."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {name: plain(each) for name, each in named}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else _word(value)
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    if hasattr(value, "item"):  # a number of numpy's or torch's
        return plain(value.item())
    raise TypeError(f"{value!r} is not plain data: expected numbers, strings, lists and mappings")


def restored(kind: Any, data: Any) -> Any:
    """What `plain` was given, of this type; ValueError if it was something else."""
    options = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        if data is None and type(None) in options:
            return None
        (kind,) = (each for each in options if each is not type(None))
        return restored(kind, data)
    if get_origin(kind) is tuple:
        return _tuple(options, data)
    if dataclasses.is_dataclass(kind):
        return _instance(kind, data)
    if kind is float:
        return float(data)
    return data


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"expected a list, got {data!r}")
    if kinds[-1] is Ellipsis:
        return tuple(restored(kinds[0], each) for each in data)
    return tuple(restored(kind, each) for kind, each in zip(kinds, data, strict=True))


def _instance(kind: Any, data: Any) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(data, dict) or set(data) != set(hints):
        raise ValueError(f"not a {kind.__name__}: expected the fields {', '.join(hints)}")
    return kind(**{name: restored(hint, data[name]) for name, hint in hints.items()})


def _word(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "infinity" if value > 0 else "-infinity"


FORMAT = 2

Kind = Literal[
    "guarantee",
    "by-ledger-alone",
    "nothing-released",
    "not-established",
    "no-guarantee",
    "too-weak",
    "protects-nobody",
]


@dataclass(frozen=True)
class Verdict:
    """Whether anything is promised, in words for somebody who has to sign.

    Attributes:
        kind: what the claim is worth.
        headline: the same in a few words.
        sentence: the guarantee, or why there is none.
        meaning: what it lets somebody find out at most, and what delta is; empty if none holds.
        warnings: what must not be overlooked, the gravest first.
    """

    kind: Kind
    headline: str
    sentence: str
    meaning: str
    warnings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether something is promised."""
        return self.kind in ("guarantee", "by-ledger-alone", "nothing-released")


@dataclass(frozen=True)
class Bound:
    """One accountant's epsilon.

    Attributes:
        accountant: its name.
        epsilon: None if it has no formula for such a run.
        is_guarantee: whether it is an upper bound.
        note: what it is, in words.
    """

    accountant: str
    epsilon: float | None
    is_guarantee: bool
    note: str


@dataclass(frozen=True)
class EpsilonAtDelta:
    """An epsilon and a delta that hold together."""

    delta: float
    epsilon: float


@dataclass(frozen=True)
class GroupBound:
    """What holds for several records at once, such as those of one person."""

    records: int
    epsilon: float


@dataclass(frozen=True)
class Epsilons:
    """What everything in the ledger spends together.

    Attributes:
        delta: at which; None if nobody stated one.
        claimed: by the accountant of the run; None without a delta.
        accountant: that accountant.
        bounds: by each accountant at that delta.
        curve: by privacy loss distributions, from the largest delta to the smallest.
        groups: at the same delta; empty where it is not known.
        detection: the largest share of used records that any test recognizes, if it wrongly names
            1 % of the others; by privacy loss distributions.
    """

    delta: float | None
    claimed: float | None
    accountant: str
    bounds: tuple[Bound, ...]
    curve: tuple[EpsilonAtDelta, ...]
    groups: tuple[GroupBound, ...]
    detection: float


@dataclass(frozen=True)
class Phase:
    """Releases in a row that the ledger records.

    Attributes:
        steps: how many.
        noise_multiplier: of each.
        sampling: how records took part, in words.
        noise: where the noise came from, as recorded.
        by: "this training", "others", or "unknown" if nothing but the ledger is there.
    """

    steps: int
    noise_multiplier: float
    sampling: str
    noise: str
    by: str


@dataclass(frozen=True)
class Fact:
    """A row of a table."""

    name: str
    value: str


@dataclass(frozen=True)
class Section:
    """Facts that belong together."""

    title: str
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Item:
    """A point of a list: a few words, and a sentence about them."""

    title: str
    text: str


@dataclass(frozen=True)
class Statement:
    """A privacy report.

    Attributes:
        format: of this record.
        title: what was trained.
        made_at: when the report was drawn up, in UTC.
        verdict: what is promised.
        unit: what one record is, and which data sets must look alike.
        released: what the guarantee covers.
        not_covered: what it does not, to be confirmed by whoever signs.
        unknowns: what the evidence does not say.
        epsilons: the figures.
        phases: what the ledger records, in order; if it is much, added up by kind.
        sections: how it was done.
        metrics: by epoch, as they were handed over.
        audit: what an audit found, as it was handed over.
        settings: of the engine, if they are known.
        config: what the run was asked to do, if that is known.
    """

    format: int
    title: str
    made_at: str
    verdict: Verdict
    unit: tuple[Item, ...]
    released: tuple[Item, ...]
    not_covered: tuple[Item, ...]
    unknowns: tuple[str, ...]
    epsilons: Epsilons
    phases: tuple[Phase, ...]
    sections: tuple[Section, ...]
    metrics: tuple[dict[str, Any], ...]
    audit: dict[str, Any] | None
    settings: dict[str, Any] | None
    config: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data that strict JSON holds."""
        found: dict[str, Any] = plain(self)
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Statement":
        """What `as_dict` gave; ValueError if it did not give this."""
        found = restored(cls, data)
        assert isinstance(found, cls)
        return found
