"""What an audit found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quietgrad.audit import bounds
from quietgrad.audit.bounds import (
    LARGEST_EPSILON,
    Rates,
    TradeOff,
    from_rates,
    gaussian_from_rates,
    gaussian_lower_bound,
    largest_rejected,
    lower_bound,
)
from quietgrad.audit.claims import Claim, Recorded

if TYPE_CHECKING:
    pass  # MOVED

Rows = list[tuple[str, str]]


def described(
    found: AuditResult, number: Callable[[float], str], *, upper: Callable[[float], str]
) -> Rows:
    """Names and values.

    Args:
        found: by the audit.
        number: writes a lower bound.
        upper: writes an upper bound.
    """
    return [
        ("claimed epsilon", f"{upper(found.claimed_epsilon)} at delta {found.delta:g}"),
        *_of_claim(found.claimed_for),
        ("measured lower bound", _measured(found.lower_bound, number)),
        ("confidence", f"{found.confidence:g}"),
        ("canaries", _canaries(found)),
        *_guesses(found),
        *((f"bound: {name}", number(value)) for name, value in found.bounds.items()),
    ]


def _of_claim(about: Mapping[str, Any]) -> Rows:
    if not about:
        return []
    worth = "" if about["is_guarantee"] else " (an approximation, no bound)"
    noise = ", ".join(f"{each:.4g}" for each in about["noise_multiplier"][:3])
    more = ", ..." if len(about["noise_multiplier"]) > 3 else ""
    sampling = ", ".join(_sampling(each) for each in about["sampling"])
    return [
        ("claimed by", f"{about['accountant']}{worth}, {about['adjacency']}"),
        ("claimed for", f"{about['steps']:,} steps, {sampling}"),
        ("noise", f"{noise}{more} ({', '.join(about['noise'])})"),
    ]


def _sampling(settings: Mapping[str, Any]) -> str:
    numbers = [f"{name} {value:.4g}" for name, value in settings.items() if name != "kind"]
    return " ".join([settings["kind"], *numbers])


def _measured(bound: float, number: Callable[[float], str]) -> str:
    return "outside of the claim's family" if math.isinf(bound) else number(bound)


def _canaries(found: AuditResult) -> str:
    runs = "" if found.runs == 1 else f" in {found.runs} runs"
    return f"{found.canaries:,}{runs}{', seeded' if found.seeded else ''}"


def _guesses(found: AuditResult) -> Rows:
    by_rank = _share(found.correct, found.guesses)
    if found.rates is None:
        return [("right guesses by rank (decide)", by_rank)]
    return [
        ("right guesses by threshold (decide)", _share(found.rates.correct, found.rates.guesses)),
        ("right guesses by rank", by_rank),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({part / whole:.1%})"


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
        rows = described(self, "{:.4g}".format, upper="{:.4g}".format)
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


_TOLERANCE = 1e-2  # of a claim's strength: every trial composes a whole run


@dataclass(frozen=True, eq=False)
class AuditEvidence:
    """What all runs showed together.

    Attributes:
        scores: one per canary.
        present: whether each was there.
        threshold: above it, a canary is taken for present; None if canaries may not be independent.
        guesses: how many were made by rank.
        correct: how many of these were right.
    """

    scores: NDArray[np.float64]
    present: NDArray[np.bool_]
    threshold: float | None
    guesses: int
    correct: int

    @property
    def rates(self) -> Rates | None:
        """How often the threshold was wrong."""
        if self.threshold is None:
            return None
        guessed, present = self.scores > self.threshold, self.present
        return Rates(
            false_positives=int((guessed & ~present).sum()),
            negatives=int((~present).sum()),
            false_negatives=int((~guessed & present).sum()),
            positives=int(present.sum()),
        )

    def p_value(self, tradeoff: TradeOff) -> float:
        """The probability of guesses this good, if no more than this can be told apart."""
        rates = self.rates
        if rates is not None:
            return bounds.independent(tradeoff, correct=rates.correct, guesses=rates.guesses)
        return bounds.one_run(
            tradeoff, correct=self.correct, guesses=self.guesses, canaries=len(self.scores)
        )

    def least_p_value(self, tradeoff: TradeOff) -> float:
        """The same if every guess had been right: no p-value could have been smaller."""
        everything = len(self.scores)
        if self.rates is not None:
            return bounds.independent(tradeoff, correct=everything, guesses=everything)
        return bounds.one_run(
            tradeoff, correct=self.guesses, guesses=self.guesses, canaries=everything
        )

    def rejects(self, tradeoff: TradeOff, alpha: float) -> bool:
        """Whether that probability is below alpha; cheaper than to compute it."""
        if self.rates is not None:
            return self.p_value(tradeoff) < alpha
        return not bounds.tail_is_possible(
            tradeoff, alpha, self.correct, self.guesses, len(self.scores)
        )


def judge(
    claim: Claim, evidence: AuditEvidence, *, runs: int, confidence: float, seeded: bool
) -> AuditResult:
    """Test the claim, and measure how far from it the truth must be."""

    def is_rejected(strength: float) -> bool:
        return evidence.rejects(claim.tradeoff(strength), 1 - confidence)

    def is_beyond(strength: float) -> bool:
        return claim.epsilon_at(strength) > LARGEST_EPSILON

    strength = largest_rejected(is_rejected, tolerance=_TOLERANCE, is_beyond=is_beyond)
    return AuditResult(
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        lower_bound=_epsilon_of(claim, strength),
        p_value=evidence.p_value(claim.tradeoff()),
        least_p_value=evidence.least_p_value(claim.tradeoff()),
        confidence=confidence,
        canaries=len(evidence.scores),
        runs=runs,
        guesses=evidence.guesses,
        correct=evidence.correct,
        rates=evidence.rates,
        bounds=_further_bounds(evidence, claim.delta, confidence),
        scores=evidence.scores,
        present=evidence.present,
        threshold=evidence.threshold,
        claimed_for=claim.details if isinstance(claim, Recorded) else {},
        seeded=seeded,
    )


def _epsilon_of(claim: Claim, strength: float) -> float:
    """Infinite if guesses were better than the family allows, however little noise it has."""
    if strength == 0 or math.isinf(strength):
        return strength
    return claim.epsilon_at(strength)


def _further_bounds(evidence: AuditEvidence, delta: float, confidence: float) -> dict[str, float]:
    bounds = {
        name: method(
            correct=evidence.correct,
            guesses=evidence.guesses,
            canaries=len(evidence.scores),
            delta=delta,
            confidence=confidence,
        )
        for name, method in (("any mechanism", lower_bound), ("Gaussian", gaussian_lower_bound))
    }
    if (rates := evidence.rates) is not None:
        at = {"delta": delta, "confidence": confidence}
        bounds["any mechanism, independent canaries"] = from_rates(rates, **at)
        bounds["Gaussian, independent canaries"] = gaussian_from_rates(rates, **at)
    return bounds
