"""The bias of normalization (Xiao et al., section 3) and of psac (Xia et al., Theorem 2)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.helpers import run, steady

from quietgrad.theory import (
    normalized_bias,
    normalized_bound,
    normalized_learning_rate,
    psac_bias,
    psac_learning_rate,
    two_samples,
)


def test_normalized_bound_is_the_papers():
    training = run(400, noise_multiplier=3.0, loss_gap=2.0, smoothness=5.0)
    noise = 2 + (3 / 100) ** 2 * 10_000
    expected = math.sqrt(32 * 5 * 2 * noise / 400) + 15 * 0.1
    assert normalized_bound(training, tau=0.1) == pytest.approx(expected)


def test_its_learning_rate_minimizes_the_proofs_sum():
    training = run(400, noise_multiplier=3.0, loss_gap=2.0, smoothness=5.0)
    noise = 2 + (3 / 100) ** 2 * 10_000

    def proofs_sum(rate):
        return 4 * 2 / (rate * 400) + 2 * 5 * rate * noise

    best = normalized_learning_rate(training)
    assert proofs_sum(best) == pytest.approx(normalized_bound(training, tau=0.0))
    assert proofs_sum(best) < min(proofs_sum(best * 1.01), proofs_sum(best / 1.01))


@given(tau=st.floats(0, 100), steps=st.integers(1, 10**28))
@steady
def test_the_bias_stays_however_long_the_run(tau, steps):
    assert normalized_bound(run(steps), tau=tau) >= normalized_bias(tau) == 15 * tau


def test_all_but_the_bias_vanishes():
    assert normalized_bound(run(10**28), tau=0.2) == pytest.approx(3.0, rel=1e-9)


def test_two_opposite_samples_cancel_away_from_the_minimum():
    assert two_samples(0.0) == 0
    between = np.linspace(-2.99, 0.99, 50)
    assert (two_samples(between) == 0).all()
    assert two_samples(-1.0, "none") == 0
    assert two_samples(0.0, "none") == -2 + 6
    assert two_samples(0.0, "abadi") == 0
    assert two_samples(0.0, "auto-s") > 0
    assert two_samples(0.0, "psac") > 0
    assert (two_samples(np.array([-4.0, 2.0])) == [-2, 2]).all()


def test_bad_arguments_of_the_normalized_bound_are_refused():
    with pytest.raises(ValueError, match="tau=-1 is not valid: expected"):
        normalized_bound(run(), tau=-1)
    with pytest.raises(ValueError, match=r"batch_size=0\.5 is not valid: expected"):
        normalized_bound(run(batch_size=0.5), tau=1)
    with pytest.raises(ValueError, match="radius=0 is not valid"):
        two_samples(0.0, radius=0)


def psac_bias_as_printed(tau_0, tau_1, r):
    descent = min(
        tau_0 / (1 - tau_1),
        (2 * tau_0**2 + r * tau_0 * (1 - tau_1))
        / (4 * tau_0**2 + 2 * r * tau_0 * (1 - tau_1) + r * (1 - tau_1) ** 2),
    )
    weight = tau_0 + r * (1 - tau_1) / (2 * tau_0 + r * (1 - tau_1))
    below = 3 * descent * (1 - tau_1) ** 3 * weight * (2 * math.sqrt(r) - r)
    return 8 * tau_0**2 * (1 + tau_0) / below


@given(tau_0=st.floats(1e-3, 1e3), tau_1=st.floats(0, 0.99), r=st.floats(1e-6, 1))
@steady
def test_psac_bias_is_the_papers(tau_0, tau_1, r):
    expected = psac_bias_as_printed(tau_0, tau_1, r)
    assert psac_bias(tau_0=tau_0, tau_1=tau_1, r=r) == pytest.approx(expected, rel=1e-9)


def test_psac_bias_grows_as_the_inverse_root_of_r():
    """Remark 2."""
    at = {"tau_0": 1.0, "tau_1": 0.5}
    assert psac_bias(**at, r=1e-12) / psac_bias(**at, r=1e-8) == pytest.approx(100, rel=1e-3)


def test_psac_bias_vanishes_with_the_sampling_noise():
    values = [psac_bias(tau_0=tau, tau_1=0.0) for tau in (1e-8, 1e-4, 1e-2, 1.0, 10.0)]
    assert values == sorted(values)
    assert values[0] < 1e-6


def test_psac_learning_rate_is_the_papers():
    training = run(400, noise_multiplier=3.0, parameters=50)
    expected = math.sqrt(2 * 100**2 / (50 * 9 * 400 * (2 + 0.5 * (1.5 + 1))))
    rate = psac_learning_rate(training, smoothness_0=2.0, smoothness_1=0.5, tau_0=1.5)
    assert rate == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"tau_0": 0.0}, "tau_0=0.0"),
        ({"tau_1": 1.0}, "tau_1=1.0"),
        ({"tau_1": -0.1}, "tau_1=-0.1"),
        ({"r": 0.0}, "r=0.0"),
        ({"r": 1.5}, "r=1.5"),
    ],
)
def test_bad_arguments_of_psac_are_refused(wrong, name):
    with pytest.raises(ValueError, match=f"{name} is not valid: expected"):
        psac_bias(**({"tau_0": 1.0, "tau_1": 0.0} | wrong))


def test_psacs_learning_rate_needs_noise():
    with pytest.raises(ValueError, match=r"noise_multiplier=0\.0 is not valid"):
        psac_learning_rate(run(noise_multiplier=0.0), smoothness_0=1, smoothness_1=0, tau_0=1)
