"""From guesses to a verdict.

One test decides, chosen before anything was seen: of all canaries by the threshold if they are
independent, of those guessed about by rank if they may not be. So no correction is needed, and the
measured bound reaches the claim exactly where the claim is rejected. Further bounds are shown
beside it and decide nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quietgrad.audit import pvalues
from quietgrad.audit.bounds import (
    Rates,
    from_rates,
    gaussian_from_rates,
    gaussian_lower_bound,
    largest_rejected,
    lower_bound,
)
from quietgrad.audit.claims import Claim, Recorded
from quietgrad.audit.result import AuditResult
from quietgrad.audit.tradeoffs import LARGEST_EPSILON, TradeOff

_TOLERANCE = 1e-2  # of a claim's strength: every trial composes a whole run


@dataclass(frozen=True, eq=False)
class Evidence:
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
            return pvalues.independent(tradeoff, correct=rates.correct, guesses=rates.guesses)
        return pvalues.one_run(
            tradeoff, correct=self.correct, guesses=self.guesses, canaries=len(self.scores)
        )

    def least_p_value(self, tradeoff: TradeOff) -> float:
        """The same if every guess had been right: no p-value could have been smaller."""
        everything = len(self.scores)
        if self.rates is not None:
            return pvalues.independent(tradeoff, correct=everything, guesses=everything)
        return pvalues.one_run(
            tradeoff, correct=self.guesses, guesses=self.guesses, canaries=everything
        )

    def rejects(self, tradeoff: TradeOff, alpha: float) -> bool:
        """Whether that probability is below alpha; cheaper than to compute it."""
        if self.rates is not None:
            return self.p_value(tradeoff) < alpha
        return not pvalues.tail_is_possible(
            tradeoff, alpha, self.correct, self.guesses, len(self.scores)
        )


def judge(
    claim: Claim, evidence: Evidence, *, runs: int, confidence: float, seeded: bool
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


def _further_bounds(evidence: Evidence, delta: float, confidence: float) -> dict[str, float]:
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
