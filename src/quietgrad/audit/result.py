"""What a run claims, and what an audit of it found.

An audit that rejects a claim says how far it is from the truth by rejecting, or not, a family of
claims around it. Each claim here names its family: strength 1 is the claim itself, and more
strength leaks more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quietgrad._checks import require_delta, require_number
from quietgrad.accounting import accountants, events
from quietgrad.accounting.accountants.base import Precision, PrivacyProfile
from quietgrad.accounting.events import ADD_REMOVE, Adjacency, GaussianEvent
from quietgrad.audit.bounds import ProfileTradeOff, Rates, TradeOff, pair


class Claim(Protocol):
    """An epsilon at a delta, and what it stands for."""

    @property
    def epsilon(self) -> float:
        """What is claimed."""

    @property
    def delta(self) -> float:
        """The probability with which it may fail."""

    def tradeoff(self, strength: float = 1.0) -> TradeOff:
        """What an adversary could tell if the claim were this much stronger."""

    def epsilon_at(self, strength: float) -> float:
        """The epsilon of that, at `delta`."""


@dataclass(frozen=True)
class Pair:
    """(epsilon, delta) and nothing else: its family has the same delta and strength x epsilon."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_number("epsilon", self.epsilon, at_least=0.0)
        require_delta("delta", self.delta)

    def tradeoff(self, strength: float = 1.0) -> TradeOff:
        """Of the worst mechanism with this epsilon and delta."""
        return pair(self.epsilon_at(strength), self.delta)

    def epsilon_at(self, strength: float) -> float:
        """Strength times epsilon; an epsilon of 0 has a family too."""
        return strength * self.epsilon if self.epsilon else max(0.0, strength - 1)


@dataclass(frozen=True)
class Recorded:
    """What a ledger says was done: its family did the same with noise / strength.

    The whole curve of (epsilon, delta) pairs is claimed, which an audit tests far more sharply than
    one of its pairs.

    Args:
        events: such as `engine.ledger.events`.
        delta: at which epsilon is stated.
        adjacency: which data sets are claimed to look alike.
        accountant: whose figures are claimed.
    """

    events: tuple[GaussianEvent, ...]
    delta: float
    adjacency: Adjacency = ADD_REMOVE
    accountant: str = "pld"

    def __post_init__(self) -> None:
        require_delta("delta", self.delta)

    @cached_property
    def epsilon(self) -> float:
        """What the accountant says was spent."""
        return self._profile(1.0).epsilon(self.delta)

    @property
    def details(self) -> dict[str, Any]:
        """What was done and how it is counted, as plain data."""
        return {
            "accountant": self.accountant,
            "is_guarantee": accountants.resolve(self.accountant).is_guarantee,
            "adjacency": self.adjacency,
            "steps": sum(event.steps for event in self.events),
            "sampling": _distinct(events.to_dict(event.sampling) for event in self.events),
            "noise_multiplier": _distinct(event.noise_multiplier for event in self.events),
            "noise": _distinct(event.noise for event in self.events),
        }

    def tradeoff(self, strength: float = 1.0) -> TradeOff:
        """What the accountant says can be told apart."""
        return ProfileTradeOff(self._profile(strength))

    def epsilon_at(self, strength: float) -> float:
        """What the accountant would say with this much less noise."""
        return self._profile(strength).epsilon(self.delta)

    def _profile(self, strength: float) -> PrivacyProfile:
        # What is claimed is computed as a ledger computes it; around it, a coarse grid will do.
        precision: Precision = "fine" if strength == 1 else "coarse"
        noise = (event.noise_multiplier / strength for event in self.events)
        family = zip(self.events, noise, strict=True)
        return accountants.profile(
            [replace(event, noise_multiplier=sigma) for event, sigma in family],
            accountant=self.accountant,
            adjacency=self.adjacency,
            precision=precision,
        )


def _distinct(values: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


@dataclass(frozen=True, eq=False)
class AuditResult:
    """A claim beside what was measured.

    Not finding a violation proves nothing: an audit sees what its canaries and its guesses can see.

    Attributes:
        claimed_epsilon: what the audited training says it spends.
        delta: at which it says so.
        lower_bound: the epsilon that was measured: the truth is not below it, with probability
            `confidence`, if it belongs to the claim's family (see `quietgrad.audit.Claim`).
            Infinite if guesses were better than that family allows, whatever its noise.
        p_value: the probability of guesses this good if the claim holds; the test that decides.
        least_p_value: what it had been if every guess were right.
        confidence: 1 minus the probability of raising a false alarm.
        canaries: how many there were, in all runs together.
        runs: how many runs there were.
        guesses: how many canaries were guessed about by their rank; fixed beforehand.
        correct: how many of these guesses were right.
        rates: errors of guesses by the fixed threshold; None if canaries are not independent.
        bounds: further lower bounds on epsilon by name, each by itself with this confidence.
        scores: one per canary.
        present: whether each canary was there.
        threshold: above it, a canary was taken for present; None if canaries are not independent.
        claimed_for: what the claim is about, where a ledger makes it: accountant, adjacency, steps,
            sampling, noise.
        seeded: whether coins and training can be recomputed: then it was a test of the audit.
    """

    claimed_epsilon: float
    delta: float
    lower_bound: float
    p_value: float
    least_p_value: float
    confidence: float
    canaries: int
    runs: int
    guesses: int
    correct: int
    rates: Rates | None
    bounds: dict[str, float]
    scores: NDArray[np.float64] = field(repr=False)
    present: NDArray[np.bool_] = field(repr=False)
    threshold: float | None = field(repr=False)
    claimed_for: dict[str, Any] = field(default_factory=dict)
    seeded: bool = False

    def __str__(self) -> str:
        rows = describe(self, "{:.4g}".format, upper="{:.4g}".format)
        width = max(len(name) for name, _ in rows)
        verdict = "VIOLATED" if self.violated else "not violated"
        if not self.could_reject:
            verdict = "NOT TESTED: too few canaries"
        table = [f"{name:<{width}}  {value}" for name, value in rows]
        return "\n".join([f"claim {verdict} (p = {self.p_value:.2g})", *table])

    @property
    def violated(self) -> bool:
        """Whether the claim is rejected."""
        return self.p_value < 1 - self.confidence

    @property
    def could_reject(self) -> bool:
        """Whether there were canaries enough to reject the claim, had it been false."""
        return self.least_p_value < 1 - self.confidence

    @property
    def decided_by(self) -> str:
        """Which guesses the test was about; settled before anything was seen."""
        return "rank" if self.rates is None else "threshold"

    def as_dict(self) -> dict[str, Any]:
        """Everything but the scores, as plain data."""
        names = "claimed_epsilon delta lower_bound p_value confidence canaries runs guesses correct"
        return {
            "violated": self.violated,
            "could_reject": self.could_reject,
            **{name: getattr(self, name) for name in names.split()},
            "rates": None if self.rates is None else asdict(self.rates),
            "bounds": dict(self.bounds),
            "decided_by": self.decided_by,
            "claimed_for": dict(self.claimed_for),
            "seeded": self.seeded,
        }


Rows = list[tuple[str, str]]


def describe(
    found: AuditResult, number: Callable[[float], str], *, upper: Callable[[float], str]
) -> Rows:
    """Names and values.

    Args:
        found: by the audit.
        number: formats a lower bound.
        upper: formats an upper bound.
    """
    bound, runs = found.lower_bound, f" in {found.runs} runs" if found.runs > 1 else ""
    by_rank = _share(found.correct, found.guesses)
    guesses: Rows = [("right guesses by rank (decide)", by_rank)]
    if (rates := found.rates) is not None:
        by_threshold = _share(rates.correct, rates.guesses)
        guesses = [
            ("right guesses by threshold (decide)", by_threshold),
            ("right guesses by rank", by_rank),
        ]
    return [
        ("claimed epsilon", f"{upper(found.claimed_epsilon)} at delta {found.delta:g}"),
        *_describe_claim(found.claimed_for),
        (
            "measured lower bound",
            "outside of the claim's family" if math.isinf(bound) else number(bound),
        ),
        ("confidence", f"{found.confidence:g}"),
        ("canaries", f"{found.canaries:,}{runs}{', seeded' if found.seeded else ''}"),
        *guesses,
        *((f"bound: {name}", number(value)) for name, value in found.bounds.items()),
    ]


def _describe_claim(about: Mapping[str, Any]) -> Rows:
    if not about:
        return []
    worth = "" if about["is_guarantee"] else " (an approximation, no bound)"
    noise = ", ".join(f"{each:.4g}" for each in about["noise_multiplier"][:3])
    more = ", ..." if len(about["noise_multiplier"]) > 3 else ""
    sampling = ", ".join(
        " ".join([each["kind"], *(f"{n} {value:.4g}" for n, value in each.items() if n != "kind")])
        for each in about["sampling"]
    )
    return [
        ("claimed by", f"{about['accountant']}{worth}, {about['adjacency']}"),
        ("claimed for", f"{about['steps']:,} steps, {sampling}"),
        ("noise", f"{noise}{more} ({', '.join(about['noise'])})"),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.1%})"
