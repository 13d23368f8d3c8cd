"""How surprising so many right guesses are, if a claim holds: p-values.

Every canary is present with probability 1/2, by a coin of its own. An auditor sees the result,
makes a fixed number of guesses about coins and abstains from the rest. Each function here bounds
the probability of at least `correct` right guesses under what its first arguments claim. Reject the
claim where that is below 1 - confidence, and correct claims are rejected with no more than that
probability. The number of guesses must not be chosen after the coins were seen.
"""

import numpy as np

from quietgrad._checks import require_count
from quietgrad.audit.tradeoffs import TradeOff

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
