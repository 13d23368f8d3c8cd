"""mu of Gaussian differential privacy, in the limit of many steps.

The surrogate by which Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made
Easier and Stronger", section 5.2, relate noise, batch size and steps. It is an approximation that
can claim too little privacy loss: for advice only. What a run spends, `quietgrad.accounting` says.
"""

import math

from quietgrad._checks import require_count, require_delta, require_positive
from quietgrad.theory._floats import within_floats


def gdp_mu(*, noise_multiplier: float, batch_size: float, samples: int, steps: int) -> float:
    """Mu = (B/n) sqrt(T (e^(1/sigma^2) - 1)).

    Args:
        noise_multiplier: sigma, from 0.04 to 1e100.
        batch_size: B, the expected number of samples in a batch, at most `samples`.
        samples: n.
        steps: T.
    """
    per_step = _per_step(batch_size, samples, steps)
    if not 0.04 <= require_positive("noise_multiplier", noise_multiplier) <= 1e100:
        raise ValueError(
            f"noise_multiplier={noise_multiplier!r} is not valid: expected a number from 0.04 to"
            " 1e100, outside of which mu is beyond the floats"
        )
    return per_step * math.sqrt(math.expm1(noise_multiplier**-2))


def noise_for_mu(mu: float, *, batch_size: float, samples: int, steps: int) -> float:
    """The noise multiplier at which `gdp_mu` is mu."""
    ratio = require_positive("mu", mu) / _per_step(batch_size, samples, steps)
    if not 1e-100 <= ratio <= 1e100:
        raise ValueError(
            f"mu={mu!r} is not valid: expected from 1e-100 to 1e100 times batch_size/samples"
            " sqrt(steps)"
        )
    return 1 / math.sqrt(math.log1p(ratio * ratio))


@within_floats
def epsilon_of_mu(mu: float, *, delta: float) -> float:
    """Epsilon = mu^2 + mu sqrt(2 log(1/delta)), at which mu-GDP implies (epsilon, delta).

    A simple bound, not the least epsilon: already mu^2/2 in place of mu^2 would do.
    """
    return require_positive("mu", mu) ** 2 + mu * _tail(delta)


def mu_of_epsilon(epsilon: float, *, delta: float) -> float:
    """The mu at which `epsilon_of_mu` is epsilon."""
    require_positive("epsilon", epsilon)
    tail = _tail(delta)
    return 2 * epsilon / (tail + math.sqrt(tail**2 + 4 * epsilon))


def _per_step(batch_size: float, samples: int, steps: int) -> float:
    """(B/n) sqrt(T)."""
    require_count("samples", samples, at_least=1)
    require_count("steps", steps, at_least=1)
    if require_positive("batch_size", batch_size) > samples:
        raise ValueError(
            f"batch_size={batch_size!r} is not valid: expected at most samples={samples}"
        )
    return batch_size / samples * math.sqrt(steps)


def _tail(delta: float) -> float:
    return math.sqrt(-2 * math.log(require_delta("delta", delta)))
