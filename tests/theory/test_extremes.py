"""Arguments that are each valid, and too large or too small to be computed with."""

import pytest

from quietgrad import theory

HUGE, TINY = 1e300, 1e-300
ADVISED = {"samples": 1000, "parameters": 10, "steps": 10, "loss_gap": 1.0, "smoothness": 1.0}
BEYOND = {
    "alignment": lambda: theory.alignment(0.5, r=HUGE, Gamma=0.1),
    "psac_bias": lambda: theory.psac_bias(tau_0=HUGE, tau_1=0.5),
    "epsilon_of_mu": lambda: theory.epsilon_of_mu(HUGE, delta=1e-5),
    "advise": lambda: theory.advise(batch_size=TINY, noise_multiplier=1.0, **ADVISED),
    "normalized_learning_rate": lambda: theory.normalized_learning_rate(
        theory.Training(1, TINY, HUGE, 1, HUGE, TINY)
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_terms_beyond_floats_are_refused(name):
    with pytest.raises(ValueError, match=rf"^{name}\(.*floating-point"):
        BEYOND[name]()
