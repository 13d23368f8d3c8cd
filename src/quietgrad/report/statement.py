"""What a privacy report says, as plain records: the page and the JSON show the same."""

import dataclasses
import types
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from quietgrad._format import plain

FORMAT = 3

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
class Noun:
    """What is drawn and protected, in words.

    Attributes:
        one: "record", or what a unit of several is called.
        many: of them.
    """

    one: str = "record"
    many: str = "records"


@dataclass(frozen=True)
class Verdict:
    """Whether anything is guaranteed, in words for the person who signs.

    Attributes:
        kind: of the verdict.
        headline: the verdict in a few words.
        sentence: the guarantee, or why there is none.
        meaning: how to read its figures; empty if there is no guarantee.
        warnings: the most serious first.
    """

    kind: Kind
    headline: str
    sentence: str
    meaning: str
    warnings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether there is something to rely on."""
        return self.kind in ("guarantee", "by-ledger-alone", "nothing-released")


@dataclass(frozen=True)
class Bound:
    """One accountant's epsilon.

    Attributes:
        accountant: its name.
        epsilon: None if the accountant has no formula for such a run.
        is_guarantee: whether epsilon is an upper bound.
        note: the method, in words.
    """

    accountant: str
    epsilon: float | None
    is_guarantee: bool
    note: str


@dataclass(frozen=True)
class EpsilonAtDelta:
    """An epsilon and the delta at which it holds."""

    delta: float
    epsilon: float


@dataclass(frozen=True)
class GroupBound:
    """The bound for several records at once, such as those of one person; or several units."""

    records: int
    epsilon: float


@dataclass(frozen=True)
class PartBound:
    """What a record of one of several disjoint data sets spends; None where it is not known."""

    dataset: str
    steps: int
    epsilon: float | None


@dataclass(frozen=True)
class Epsilons:
    """What all releases in the ledger spend together.

    Attributes:
        delta: of the claim; None if none is stated.
        claimed: epsilon by the accountant of the run; None without a delta.
        accountant: of the run.
        bounds: epsilon by each accountant at that delta.
        curve: by privacy loss distributions, from the largest delta to the smallest.
        groups: bounds for several records at the same delta; empty where they are not known.
        detection: the largest share of the records used that an attacker identifies with 1 % false
            alarms; by privacy loss distributions.
        parts: of data sets that are declared disjoint; everything else here is the largest of them.
    """

    delta: float | None
    claimed: float | None
    accountant: str
    bounds: tuple[Bound, ...]
    curve: tuple[EpsilonAtDelta, ...]
    groups: tuple[GroupBound, ...]
    detection: float
    parts: tuple[PartBound, ...] = ()


@dataclass(frozen=True)
class Phase:
    """Consecutive releases of one kind in the ledger.

    Attributes:
        steps: number of releases.
        noise_multiplier: of each release.
        sampling: how records took part, in words.
        noise: the recorded source of the noise.
        by: "this training", "others", or "unknown" if there is only a ledger.
        dataset: its name, if it has one.
    """

    steps: int
    noise_multiplier: float
    sampling: str
    noise: str
    by: str
    dataset: str | None = None


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
    """A point of a list: a title and an explanation."""

    title: str
    text: str


AnswerSource = Literal["evidence", "user", "owner"]


@dataclass(frozen=True)
class Answer:
    """A question of an evaluation, and what is known.

    Attributes:
        topic: what it is about.
        question: in one sentence.
        answer: empty if nothing is known.
        by: "evidence"; "user", if it is as the user stated it; or "owner", who has to answer it.
    """

    topic: str
    question: str
    answer: str
    by: AnswerSource


@dataclass(frozen=True)
class Statement:
    """A privacy report.

    Attributes:
        format: of this record.
        title: what was trained.
        made_at: when the report was written, in UTC.
        verdict: what is guaranteed.
        unit: what one record is, and which data sets are compared.
        released: what the guarantee covers.
        not_covered: what it does not cover, to be confirmed by the person who signs.
        unknowns: what the evidence does not say.
        epsilons: the figures.
        phases: releases in the ledger, in order; long ledgers are summed by kind.
        sections: tables of how training was done.
        metrics: by epoch, as supplied.
        audit: what an audit found, as supplied.
        settings: of the engine, if they are known.
        config: what the run was asked to do, if that is known.
        stated: what the user stated in words, by name; no evidence confirms it.
        answers: to the questions of NIST SP 800-226.
        evidence: what else it was made from, by which it can be made again; None in formats 1, 2.
        head: SHA-256 of the evidence; None in formats 1 and 2.
        units: what is protected in the place of records, several of it, such as "patients"; None,
            and no key of the JSON, for records.
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
    stated: dict[str, str]
    answers: tuple[Answer, ...]
    evidence: dict[str, Any] | None
    head: str | None
    units: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything, as plain data that strict JSON holds."""
        found: dict[str, Any] = plain(self)
        if self.units is None:
            del found["units"]
        return found

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Statement":
        """What `as_dict` gave, of this version or an earlier one; ValueError otherwise."""
        data = _from_format_2(data)
        found = _restore(cls, {"units": None} | data if isinstance(data, dict) else data)
        assert isinstance(found, cls)
        return found


def _from_format_2(data: Any) -> Any:
    """A statement of format 2 as one of format 3; anything else unchanged."""
    if not isinstance(data, dict) or data.get("format") != _OLD_FORMAT:
        return data
    words = {name: data[f"stated_{name}"] for name in _STATED if data.get(f"stated_{name}")}
    rest = {name: data[name] for name in data if not name.startswith("stated_")}
    phases, epsilons = data.get("phases"), data.get("epsilons")
    return {
        **rest,
        "phases": [each | {"dataset": None} for each in phases] if _are(phases) else phases,
        "epsilons": epsilons | {"parts": []} if isinstance(epsilons, dict) else epsilons,
        "stated": words,
        "answers": [],
        "evidence": None,
        "head": None,
    }


_OLD_FORMAT, _STATED = 2, ("title", "data")


def _are(phases: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(phases, list) and all(isinstance(each, dict) for each in phases)


def _restore(kind: Any, data: Any) -> Any:
    """What `plain` was given, of this type; ValueError if it was something else."""
    options = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        if data is None and type(None) in options:
            return None
        (kind,) = (each for each in options if each is not type(None))
        return _restore(kind, data)
    if get_origin(kind) is tuple:
        if not isinstance(data, list):
            raise ValueError(f"expected a list, got {data!r}")
        return tuple(_restore(options[0], each) for each in data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        if not isinstance(data, dict) or set(data) != set(hints):
            raise ValueError(f"not a {kind.__name__}: expected the fields {', '.join(hints)}")
        return kind(**{name: _restore(hint, data[name]) for name, hint in hints.items()})
    return float(data) if kind is float else data
