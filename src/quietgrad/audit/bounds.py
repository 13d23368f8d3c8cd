"""Lower bounds on epsilon: the largest claim that an audit rejects.

All of them hold with probability `confidence` over coins and mechanism, each by itself. Numbers of
guesses and thresholds must have been fixed before the coins were seen: the best of several bounds
does not hold with that probability.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from quietgrad._checks import require_count, require_delta
from quietgrad.accounting.accountants.gdp import GaussianProfile
from quietgrad.audit import pvalues
from quietgrad.audit.confidence import require_confidence
from quietgrad.audit.tradeoffs import GaussianTradeOff

_LEAST = 1e-6
_MOST = 2.0**20


def lower_bound(
    *, correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """Of any mechanism, from guesses about canaries of one run (Steinke et al. 2023).

    Args:
        correct: guesses that were right.
        guesses: how many were made.
        canaries: each present with probability 1/2; those not guessed about count too.
        delta: at which epsilon is wanted.
        confidence: probability with which the bound holds.
    """
    at, alpha = require_delta("delta", delta), 1 - require_confidence(confidence)
    counts = {"correct": correct, "guesses": guesses, "canaries": canaries}
    return largest_rejected(lambda e: pvalues.pure_and_delta(e, at, **counts) < alpha)


def gaussian_lower_bound(
    *, correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """Of a mechanism as private as some Gaussian one (Mahloujifar et al. 2024).

    Tighter than `lower_bound`, and like it indifferent to how canaries influence one another. Sums
    of many noisy steps are close to Gaussian (Dong, Roth and Su 2019); epsilon is read off the
    Gaussian with the largest mu that is rejected. Arguments are those of `lower_bound`.
    """
    at, alpha = require_delta("delta", delta), 1 - require_confidence(confidence)
    pvalues.require_guesses(correct, guesses, canaries)
    mu = largest_rejected(
        lambda mu: (
            not pvalues.tail_is_possible(GaussianTradeOff(mu), alpha, correct, guesses, canaries)
        )
    )
    return GaussianProfile(mu).epsilon(at)


@dataclass(frozen=True)
class Rates:
    """How often independent guesses were wrong.

    Attributes:
        false_positives: absent canaries that were taken for present ones.
        negatives: absent canaries.
        false_negatives: present canaries that were taken for absent ones.
        positives: present canaries.
    """

    false_positives: int
    negatives: int
    false_negatives: int
    positives: int

    def __post_init__(self) -> None:
        for wrong, of in (("false_positives", "negatives"), ("false_negatives", "positives")):
            count, most = getattr(self, wrong), getattr(self, of)
            require_count(wrong, count, at_least=0)
            require_count(of, most, at_least=count)

    @property
    def guesses(self) -> int:
        """All of them: there are no abstentions."""
        return self.negatives + self.positives

    @property
    def correct(self) -> int:
        """Guesses that were right."""
        return self.guesses - self.false_positives - self.false_negatives

    def __add__(self, other: "Rates") -> "Rates":
        return Rates(
            self.false_positives + other.false_positives,
            self.negatives + other.negatives,
            self.false_negatives + other.false_negatives,
            self.positives + other.positives,
        )


def from_rates(rates: Rates, *, delta: float, confidence: float = 0.95) -> float:
    """Of any mechanism, from independent guesses: one canary a run, or canaries that never meet.

    Both error rates get a one-sided Clopper-Pearson interval, with half of the error each (Nasr et
    al. 2021, "Adversary Instantiation", section 3).
    """
    at = require_delta("delta", delta)
    one, other = _largest_rates(rates, confidence)
    return max(0.0, _log_ratio(1 - at - other, one), _log_ratio(1 - at - one, other))


def gaussian_from_rates(rates: Rates, *, delta: float, confidence: float = 0.95) -> float:
    """As `from_rates`, of a mechanism as private as some Gaussian one.

    The mu of a Gaussian with these error rates, read off at `delta` (Nasr et al. 2023, "Tight
    Auditing of Differentially Private Machine Learning").
    """
    from scipy.special import ndtri

    at = require_delta("delta", delta)
    one, other = _largest_rates(rates, confidence)
    return GaussianProfile(max(0.0, float(-ndtri(one) - ndtri(other)))).epsilon(at)


def largest_rejected(
    is_rejected: Callable[[float], bool],
    *,
    tolerance: float = 1e-3,
    is_beyond: Callable[[float], bool] = lambda number: number > _MOST,
) -> float:
    """The largest number that is rejected, or a little less; 0 if none is, infinity if all are.

    Args:
        is_rejected: says no from some number on.
        tolerance: how much less, relatively.
        is_beyond: says from where on a number means nothing any more.
    """
    low, high = 0.0, 1.0
    while is_rejected(high):
        if is_beyond(high):
            return math.inf
        low, high = high, 2 * high
    while high - low > tolerance * low and high > _LEAST:
        middle = (low + high) / 2
        low, high = (middle, high) if is_rejected(middle) else (low, middle)
    return low


def _largest_rates(rates: Rates, confidence: float) -> tuple[float, float]:
    alpha = 1 - require_confidence(confidence)
    return (
        _clopper_pearson(rates.false_positives, rates.negatives, alpha / 2),
        _clopper_pearson(rates.false_negatives, rates.positives, alpha / 2),
    )


def _clopper_pearson(wrong: int, guesses: int, alpha: float) -> float:
    """The largest rate at which so few wrong guesses have a probability of `alpha`."""
    from scipy.stats import beta

    return 1.0 if wrong == guesses else float(beta.ppf(1 - alpha, wrong + 1, guesses - wrong))


def _log_ratio(numerator: float, denominator: float) -> float:
    return math.log(numerator / denominator) if numerator > 0 else -math.inf
