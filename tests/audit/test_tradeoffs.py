import numpy as np
import pytest

from quietgrad.accounting import FullBatch, GaussianEvent, Poisson, profile
from quietgrad.accounting.accountants.base import GaussianProfile
from quietgrad.audit import Pair, Recorded
from quietgrad.audit.bounds import GaussianTradeOff, ProfileTradeOff, pair

RIGHTS = (0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


@pytest.mark.parametrize("mu", [0.05, 0.3, 1.0, 4.0])
def test_a_profile_gives_back_its_trade_off(mu):
    exact, found = GaussianTradeOff(mu), ProfileTradeOff(GaussianProfile(mu))
    assert found.accuracy == pytest.approx(exact.accuracy)
    for right in RIGHTS:
        assert found.least_wrong(right) <= exact.least_wrong(right) + 1e-12
        assert found.least_wrong(right) == pytest.approx(exact.least_wrong(right), rel=0.02)


def test_what_an_accountant_says_is_never_tighter_than_the_truth():
    """An unsampled Gaussian release has an exact trade-off function."""
    found = ProfileTradeOff(profile([GaussianEvent(2.0, FullBatch())]))
    exact = GaussianTradeOff(0.5)
    assert exact.accuracy <= found.accuracy < exact.accuracy + 1e-3
    for right in RIGHTS:
        assert found.least_wrong(right) <= exact.least_wrong(right) + 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.1), (900.0, 0.0)])
def test_the_accuracy_of_a_pair_is_the_best_of_its_curve(epsilon, delta):
    curve = pair(epsilon, delta)
    rights = np.linspace(0, 1, 100_001)
    best = max((1 + right - curve.least_wrong(right)) / 2 for right in rights[::10])
    assert curve.accuracy == pytest.approx(best, abs=1e-4)


def test_families_grow_with_their_strength():
    recorded = Recorded((GaussianEvent(3.0, Poisson(0.1), 20),), 1e-5)
    assert recorded.epsilon == recorded.epsilon_at(1.0)
    for claim in (recorded, Pair(1.0, 1e-5), Pair(0.0, 1e-5)):
        strengths = (0.5, 1.0, 2.0, 4.0)
        epsilons = [claim.epsilon_at(strength) for strength in strengths]
        accuracies = [claim.tradeoff(strength).accuracy for strength in strengths]
        assert epsilons == sorted(epsilons)
        assert accuracies == sorted(accuracies)
        assert epsilons[1] == claim.epsilon < epsilons[2]


@pytest.mark.parametrize(("epsilon", "delta"), [(-1.0, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_a_pair_that_means_nothing_is_refused(epsilon, delta):
    with pytest.raises(ValueError, match="is not valid"):
        Pair(epsilon, delta)
