"""The game of an audit: coins decide which canaries are there, and scores are to tell which.

The auditor commits to the rule before the coins are thrown, so that nothing needs correcting.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quietgrad._checks import require_count
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
    require_confidence,
)
from quietgrad.audit.result import AuditResult, Claim, Recorded

_TOLERANCE = 1e-2  # of a claim's strength: every trial composes a whole run


@dataclass(frozen=True, eq=False)
class Observation:
    """What one run showed, and what it claims.

    Attributes:
        scores: one per canary; the higher, the more likely it was there.
        claim: what training says it spends.
        threshold: a score above which a canary is taken for present, fixed before any was seen.
            Only where canaries do not influence one another's scores: their guesses then count as
            independent. None where they may.
    """

    scores: NDArray[np.float64]
    claim: Claim
    threshold: float | None = None


Train = Callable[[NDArray[np.bool_], int | None], Observation]
"""Trains with the canaries that are present, and scores all of them.

Its arguments are which canaries are present, and a seed for this run, None unless the audit has
one. An absent canary must leave no other trace than that it is not there.
"""


def one_run(
    train: Train,
    *,
    canaries: int = 1000,
    guesses: int | None = None,
    confidence: float = 0.95,
    runs: int = 1,
    seed: int | None = None,
) -> AuditResult:
    """Audit training with canaries, each of which is present with probability 1/2.

    One run is enough, since every canary is an experiment (Steinke, Nasr and Jagielski 2023,
    "Privacy Auditing with One (1) Training Run"). Several are one large run: the coin of a canary
    still moves one release of all. Correct code raises an alarm with probability 1 - `confidence`
    at most; see docs/design/0008-audits.md for what is tested.

    Args:
        train: runs the code that is audited.
        canaries: in each run.
        guesses: in each run, by rank: so many canaries with the highest and the lowest scores are
            guessed to be present and absent. A fifth of the canaries if None.
        confidence: probability with which the bounds hold.
        runs: how often to train.
        seed: fixes coins and training, for tests only.

    Example::

        canaries = audit.gradient_canaries(build_model, data, losses, build_optimizer,
                                           batch_size=256, epochs=30, epsilon=1.0, delta=1e-4)
        print(audit.one_run(canaries, canaries=1000))
    """
    require_count("canaries", canaries, at_least=1)
    guesses = max(1, canaries // 5) if guesses is None else guesses
    bounds.require_guesses(0, guesses, canaries)
    require_confidence(confidence)
    sources = np.random.SeedSequence(seed).spawn(require_count("runs", runs, at_least=1))
    seen, coins, correct = [], [], 0
    for source in sources:
        coin, training = source.spawn(2)
        present = np.random.default_rng(coin).random(canaries) < 0.5
        of_run = None if seed is None else int(training.generate_state(1)[0])
        seen.append(_check_observation(train(present.copy(), of_run), canaries))
        coins.append(present)
        correct += _count_correct(seen[-1].scores, present, guesses)
    claim, threshold = _require_agreement(seen)
    evidence = AuditEvidence(
        scores=np.concatenate([each.scores for each in seen]),
        present=np.concatenate(coins),
        threshold=threshold,
        guesses=guesses * runs,
        correct=correct,
    )
    return judge(claim, evidence, runs=runs, confidence=confidence, seeded=seed is not None)


def _check_observation(seen: Observation, canaries: int) -> Observation:
    """With scores as an array, whatever sequence they were."""
    if not isinstance(seen, Observation):
        raise TypeError(
            f"train returned {type(seen).__name__}: expected quietgrad.audit.Observation(scores, "
            "claim), where the claim may be quietgrad.audit.Pair(epsilon, delta)"
        )
    if seen.threshold is not None and not (
        np.ndim(seen.threshold) == 0 and np.isfinite(seen.threshold)
    ):
        raise ValueError(
            f"threshold={seen.threshold!r} is not valid: expected a finite score, fixed before any "
            "was seen, or None where canaries may influence one another"
        )
    scores = np.asarray(seen.scores, dtype=np.float64)
    if scores.shape != (canaries,):
        raise ValueError(f"train gave scores of shape {scores.shape}: expected ({canaries},)")
    if not np.isfinite(scores).all():
        count = int((~np.isfinite(scores)).sum())
        raise ValueError(f"{count} scores are not finite: training diverged, lower its rate")
    return replace(seen, scores=scores)


def _count_correct(scores: NDArray[np.float64], present: NDArray[np.bool_], guesses: int) -> int:
    order = np.argsort(scores, kind="stable")
    lowest = order[: guesses // 2]
    highest = order[len(order) - (guesses - len(lowest)) :]
    return int((~present[lowest]).sum() + present[highest].sum())


def _require_agreement(seen: list[Observation]) -> tuple[Claim, float | None]:
    first = seen[0]
    for other in seen[1:]:
        if (other.claim, other.threshold) != (first.claim, first.threshold):
            raise ValueError(
                f"two runs claim different things, {first.claim} and {other.claim}: expected the "
                "same claim and threshold of every run"
            )
    return first.claim, first.threshold


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
    # Infinite if guesses were better than the family allows, however little noise it has.
    measured = claim.epsilon_at(strength) if 0 < strength < math.inf else strength
    return AuditResult(
        claimed_epsilon=claim.epsilon,
        delta=claim.delta,
        lower_bound=measured,
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


def _further_bounds(evidence: AuditEvidence, delta: float, confidence: float) -> dict[str, float]:
    found = {
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
        found["any mechanism, independent canaries"] = from_rates(rates, **at)
        found["Gaussian, independent canaries"] = gaussian_from_rates(rates, **at)
    return found
