"""Which learning rate to try and what to enlarge first, by Theorem 5.

Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger",
section 5.2. At a fixed privacy level mu, the squared driving term of the bound is proportional to

    1/T  +  d/(mu n)^2  +  d s/(B^2 T),    s = sigma^2 - 1/(e^(1/sigma^2) - 1), between 0 and 1/2,

where the last term is the O(1/(B^2 T)) of eq. (5.3), exactly. More steps shrink the first and the
last, a larger batch the last; the second is the price of privacy, which neither can lower.
"""

import math
from dataclasses import dataclass
from typing import Literal

from quietgrad._checks import require_count, require_delta, require_positive
from quietgrad.theory.alignment import within_floats
from quietgrad.theory.bounds import Training


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


Lever = Literal["steps", "batch_size", "privacy"]
"""More steps, a larger batch, or what lowers the price of privacy."""


@dataclass(frozen=True)
class Advice:
    """What Theorem 5 says about a run; `print` it to read it.

    Attributes:
        mu: privacy level in the limit of many steps (approximate; see `gdp_mu`).
        noise_multiplier: that belongs to it (approximate too: calibrate with an accountant).
        base_learning_rate: lr* of the paper, sqrt((L_0 - L_*) mu^2 n^2 / (L (mu^2 n^2 + d T))).
        learning_rate: lr* / sqrt(T), for SGD on private gradients averaged over the batch and
            auto-s of radius 1, as (C.5) means it.
        steps_share: of the squared driving term, what 1/T makes.
        batch_share: what d s/(B^2 T) makes.
        privacy_share: what d/(mu n)^2 makes.
        enlarge_first: `privacy` if that makes more than half; else whichever of steps and batch,
            doubled, takes more off the driving term.
        batch_at_fixed_epochs: up to about this size a larger batch helps even if the number of
            epochs, not of steps, is fixed.
    """

    mu: float
    noise_multiplier: float
    base_learning_rate: float
    learning_rate: float
    steps_share: float
    batch_share: float
    privacy_share: float
    enlarge_first: Lever
    batch_at_fixed_epochs: float

    def __str__(self) -> str:
        return (
            f"mu about {self.mu:.3g} (noise multiplier about {self.noise_multiplier:.3g})\n"
            f"learning rate about {self.learning_rate:.3g} (lr* {self.base_learning_rate:.3g}"
            " / sqrt(steps); SGD, averaged gradients, auto-s of radius 1)\n"
            f"what holds the bound up: few steps {self.steps_share:.0%}, a small batch"
            f" {self.batch_share:.0%}, privacy {self.privacy_share:.0%}\n"
            f"first: {self._first()}\n"
            "at a fixed number of epochs a larger batch helps up to about"
            f" {self.batch_at_fixed_epochs:.3g} samples"
        )

    def _first(self) -> str:
        if self.enlarge_first == "steps":
            return "train for more steps, with the larger noise that keeps mu"
        if self.enlarge_first == "batch_size":
            return "enlarge the batch, at the same steps, with the larger noise that keeps mu"
        gain = 1 - math.sqrt(self.privacy_share)
        return (
            f"lower the price of privacy (more steps and larger batches can gain {gain:.0%} at"
            " most): train fewer parameters, find more data, or accept a larger mu; a pretrained"
            " start always helps"
        )


@within_floats
def advise(
    *,
    samples: int,
    parameters: int,
    batch_size: float,
    steps: int,
    loss_gap: float,
    smoothness: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Advice:
    """The advice of Theorem 5: learning rate, privacy level, and what to enlarge first.

    Give the noise multiplier, or epsilon and delta, which lead to mu and thereby to the noise.

    The paper finds larger batches better at fixed epochs too. That holds until the 1/T, which then
    grows with B, outweighs the last term: up to about B = sqrt(d/2).

    Args:
        samples: n.
        parameters: d.
        batch_size: B, at most `samples`.
        steps: T.
        loss_gap: L_0 - L_*.
        smoothness: L.
        noise_multiplier: sigma.
        epsilon: instead of the noise multiplier, together with delta.
        delta: in (0, 1).
    """
    if noise_multiplier is not None and epsilon is None and delta is None:
        noise = noise_multiplier
        mu = gdp_mu(noise_multiplier=noise, batch_size=batch_size, samples=samples, steps=steps)
    elif noise_multiplier is None and epsilon is not None and delta is not None:
        mu = mu_of_epsilon(epsilon, delta=delta)
        noise = noise_for_mu(mu, batch_size=batch_size, samples=samples, steps=steps)
    else:
        raise ValueError(
            f"noise_multiplier={noise_multiplier!r}, epsilon={epsilon!r}, delta={delta!r}: expected"
            " either noise_multiplier alone or epsilon and delta"
        )
    Training(steps, batch_size, noise, parameters, loss_gap, smoothness)  # checks its arguments
    # The terms of the squared driving term, in units of 1/T.
    privacy = parameters * steps / (mu * samples) ** 2
    batch = parameters * _excess(noise) / batch_size**2
    whole = 1 + batch + privacy
    base = math.sqrt(loss_gap / smoothness / (1 + privacy))
    first: Lever = "steps"
    if privacy > 1 + batch:
        first = "privacy"
    elif batch_size < samples and batch * 3 / 4 > (1 + batch) / 2:
        first = "batch_size"  # doubled, it quarters its term; doubled steps halve both others
    return Advice(
        mu=mu,
        noise_multiplier=noise,
        base_learning_rate=base,
        learning_rate=base / math.sqrt(steps),
        steps_share=1 / whole,
        batch_share=batch / whole,
        privacy_share=privacy / whole,
        enlarge_first=first,
        batch_at_fixed_epochs=min(math.sqrt(parameters / 2), samples),
    )


def _excess(noise_multiplier: float) -> float:
    """sigma^2 - 1/(e^(1/sigma^2) - 1), by its series where the two nearly cancel."""
    inverse = noise_multiplier**-2
    if inverse < 1e-4:
        return 0.5 - inverse / 12
    return 1 / inverse - 1 / math.expm1(inverse)
