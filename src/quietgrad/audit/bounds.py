"""Lower bounds on epsilon: the largest claim that an audit rejects.

All of them hold with probability `confidence` over coins and mechanism, each by itself. Numbers of
guesses and thresholds must have been fixed before the coins were seen: the best of several bounds
does not hold with that probability.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quietgrad._checks import require_count, require_delta
from quietgrad.accounting.accountants.base import GaussianProfile, PrivacyProfile


def require_confidence(value: object) -> float:
    """A probability in (0, 1), ends excluded."""
    try:
        return require_delta("confidence", value)
    except ValueError:
        raise ValueError(
            f"confidence={value!r} is not valid: expected a probability in (0, 1) such as 0.95, "
            "with which the bound is to hold"
        ) from None


_LEAST_DELTA = 1e-12  # what lies behind it can move no audit of fewer than billions of canaries
LARGEST_EPSILON = 700.0  # beyond it e^epsilon is beyond all floats
_POINTS = 128


class TradeOff(Protocol):
    """A bound on what can be told apart, the same in both directions."""

    def least_wrong(self, right: float) -> float:
        """The smallest x with fbar(x) >= right, for `right` in [0, 1]."""

    @property
    def accuracy(self) -> float:
        """The largest probability of a right guess about a fair coin."""


@dataclass(frozen=True)
class GaussianTradeOff:
    """That of two Gaussians with variance 1 whose means are `mu` apart."""

    mu: float

    def least_wrong(self, right: float) -> float:
        """Phi(Phi^-1(right) - mu)."""
        from scipy.special import ndtr, ndtri  # slow to import: only when needed

        return float(ndtr(ndtri(right) - self.mu))

    @property
    def accuracy(self) -> float:
        """Phi(mu / 2)."""
        from scipy.special import ndtr

        return float(ndtr(self.mu / 2))


@dataclass(frozen=True, eq=False)
class PointwiseTradeOff:
    """That of all mechanisms that are (epsilon, delta)-private for each of some pairs.

    Leaving pairs out never understates it, so a curve may be replaced with some of its points.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def least_wrong(self, right: float) -> float:
        """The largest of two straight lines per pair (Wasserman and Zhou 2010)."""
        falling = (right - self.deltas) * np.exp(-self.epsilons)
        rising = 1 - self.deltas - (1 - right) * np.exp(self.epsilons)
        return float(max(0.0, falling.max(), rising.max()))

    @property
    def accuracy(self) -> float:
        """At the corner of the lowest curve, where both kinds of error are equally likely."""
        errors = (1 - self.deltas) / (1 + np.exp(self.epsilons))
        return float(1 - errors.max())


def pair(epsilon: float, delta: float) -> PointwiseTradeOff:
    """Of a single pair, whatever the mechanism."""
    return PointwiseTradeOff(np.array([min(epsilon, LARGEST_EPSILON)]), np.array([delta]))


@dataclass(frozen=True, eq=False)
class ProfileTradeOff:
    """That of what an accountant computed."""

    profile: PrivacyProfile

    def least_wrong(self, right: float) -> float:
        """By enough points of the curve to lose next to nothing."""
        return self._points.least_wrong(right)

    @property
    def accuracy(self) -> float:
        """By the delta at epsilon 0, which is the total variation distance."""
        return (1 + self.profile.delta(0.0)) / 2

    @cached_property
    def _points(self) -> PointwiseTradeOff:
        largest = min(self.profile.epsilon(_LEAST_DELTA), LARGEST_EPSILON)
        epsilons = np.linspace(0.0, largest, _POINTS)
        deltas = [self.profile.delta(float(epsilon)) for epsilon in epsilons]
        return PointwiseTradeOff(epsilons, np.array(deltas))


_SMALLEST = 1e-30


def pure_and_delta(
    epsilon: float, delta: float, *, correct: int, guesses: int, canaries: int
) -> float:
    """For every (epsilon, delta)-private mechanism, all canaries in one run.

    Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", Theorem 5.2: as
    many right guesses as randomized response gives, plus what delta can add.
    """
    from scipy.special import expit
    from scipy.stats import binom

    require_guesses(correct, guesses, canaries)
    below = np.arange(correct)  # i - 1 for i = 1, 2, ..., correct
    at_least = binom.sf(correct - 1, guesses, expit(epsilon))
    # P[correct - i <= Binomial < correct], for each i
    within = np.cumsum(binom.pmf(correct - 1 - below, guesses, expit(epsilon)))
    excess = float((within / (below + 1)).max(initial=0.0))
    return float(min(1.0, at_least + 2 * canaries * delta * excess))


def one_run(tradeoff: TradeOff, *, correct: int, guesses: int, canaries: int) -> float:
    """For every mechanism with this trade-off function, all canaries in one run.

    Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run": with p_i
    the probability of exactly i right guesses, r_i the sum over j >= i of p_j j / canaries, and w_i
    that of p_j (guesses - j) / canaries, r_i <= fbar(w_(i-1)) for every i.
    """
    require_guesses(correct, guesses, canaries)

    def is_possible(probability: float) -> bool:
        return tail_is_possible(tradeoff, probability, correct, guesses, canaries)

    if is_possible(1.0):
        return 1.0
    low, high = np.log(_SMALLEST), 0.0
    while high - low > 1e-9:  # of the logarithm; the larger end is kept
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(float(np.exp(middle))) else (low, middle)
    return float(np.exp(high))


def tail_is_possible(
    tradeoff: TradeOff, probability: float, correct: int, guesses: int, canaries: int
) -> bool:
    """Whether so many guesses or more may be right with this probability.

    The least that all constraints ask for: first put the whole tail at `correct`, then go down and
    add to each p_i no more than r_(i+1) needs. More anywhere only asks for more further down, so
    if these add up to more than 1, so does every distribution with such a tail.
    """
    right = probability * correct / canaries
    wrong = probability * (guesses - correct) / canaries
    for count in range(correct - 1, -1, -1):
        added = max(0.0, tradeoff.least_wrong(right) - wrong)
        wrong += added
        right += added * count / (guesses - count)
        if right + wrong > guesses / canaries:
            return False
    return True


def independent(tradeoff: TradeOff, *, correct: int, guesses: int) -> float:
    """For every mechanism with this trade-off function, if guesses do not depend on one another.

    They do not if each is about a run of its own, or about a canary that never meets the others.
    Then each is right with at most the trade-off's best accuracy.
    """
    from scipy.stats import binom

    require_guesses(correct, guesses, guesses)
    return float(binom.sf(correct - 1, guesses, tradeoff.accuracy))


def require_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Refuse counts that contradict one another."""
    require_count("guesses", guesses, at_least=1)
    if guesses > canaries:
        raise ValueError(
            f"guesses={guesses}, canaries={canaries}: expected no more guesses than canaries"
        )
    if require_count("correct", correct, at_least=0) > guesses:
        raise ValueError(
            f"correct={correct}, guesses={guesses}: expected no more right guesses than guesses"
        )


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
    return largest_rejected(lambda e: pure_and_delta(e, at, **counts) < alpha)


def gaussian_lower_bound(
    *, correct: int, guesses: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """Of a mechanism as private as some Gaussian one (Mahloujifar et al. 2024).

    Tighter than `lower_bound`, and like it indifferent to how canaries influence one another. Sums
    of many noisy steps are close to Gaussian (Dong, Roth and Su 2019); epsilon is read off the
    Gaussian with the largest mu that is rejected. Arguments are those of `lower_bound`.
    """
    at, alpha = require_delta("delta", delta), 1 - require_confidence(confidence)
    require_guesses(correct, guesses, canaries)
    mu = largest_rejected(
        lambda mu: not tail_is_possible(GaussianTradeOff(mu), alpha, correct, guesses, canaries)
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
    ratios = ((1 - at - other) / one, (1 - at - one) / other)
    return max([0.0, *(math.log(ratio) for ratio in ratios if ratio > 0)])


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

    From some number on none is rejected; from where `is_beyond`, a number means nothing any more.
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
    """Clopper-Pearson: those at which so few wrong guesses have half of the error each."""
    from scipy.stats import beta

    alpha = 1 - require_confidence(confidence)

    def largest(wrong: int, guesses: int) -> float:
        if wrong == guesses:
            return 1.0
        return float(beta.ppf(1 - alpha / 2, wrong + 1, guesses - wrong))

    return (
        largest(rates.false_positives, rates.negatives),
        largest(rates.false_negatives, rates.positives),
    )
