"""Agreement with prv-accountant, another group's code for the same number.

"Numerical Composition of Differential Privacy", Gopi, Lee and Wutschitz 2021.
"""

import numpy as np
import pytest

from quietgrad.accounting import epsilon

prv = pytest.importorskip("prv_accountant")

EPS_ERROR = 0.03


def settings(count, seed):
    rng = np.random.default_rng(seed)
    while count:
        sigma = rng.uniform(0.7, 5.0)
        rate = 10 ** rng.uniform(-3, np.log10(0.2))
        steps = int(10 ** rng.uniform(1, np.log10(5000)))
        delta = 10 ** rng.uniform(-7, -4)
        # A large epsilon takes both of them long, and next to zero their bands say nothing.
        if 0.1 < rate * np.sqrt(steps * np.expm1(sigma**-2)) < 1.5:
            count -= 1
            yield round(sigma, 3), round(rate, 5), steps, float(f"{delta:.2g}")


def band(sigma, rate, steps, delta):
    mechanism = prv.PoissonSubsampledGaussianMechanism(
        noise_multiplier=sigma, sampling_probability=rate
    )
    accountant = prv.PRVAccountant(
        prvs=[mechanism],
        max_self_compositions=[steps],
        eps_error=EPS_ERROR,
        delta_error=delta / 1000,
    )
    lower, _, upper = accountant.compute_epsilon(delta=delta, num_self_compositions=[steps])
    return lower, upper


def check(sigma, rate, steps, delta, accountant="pld"):
    lower, upper = band(sigma, rate, steps, delta)
    value = epsilon(
        noise_multiplier=sigma, sample_rate=rate, steps=steps, delta=delta, accountant=accountant
    )
    assert lower <= value <= upper


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), list(settings(20, seed=0)))
def test_pld_lies_in_its_band(sigma, rate, steps, delta):
    check(sigma, rate, steps, delta)


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), list(settings(200, seed=1)))
def test_pld_lies_in_its_band_in_many_settings(sigma, rate, steps, delta):
    try:
        check(sigma, rate, steps, delta)
    except RuntimeError as error:
        pytest.skip(f"prv-accountant gives up: {error}")


def test_a_value_that_is_a_little_too_small_would_be_noticed():
    sigma, rate, steps, delta = 1.0, 0.02, 1000, 1e-5
    lower, upper = band(sigma, rate, steps, delta)
    assert upper - lower <= 2 * EPS_ERROR + 0.001
    with pytest.raises(AssertionError):
        check(sigma, rate, steps, delta, accountant="gdp")
