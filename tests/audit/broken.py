"""Private training gone wrong in the ways it goes wrong: what audits must notice."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import torch

from quietgrad import PrivacyEngine
from quietgrad.accounting import Poisson
from quietgrad.clipping import AutoS
from quietgrad.engine.update import NoisyUpdate
from quietgrad.reduction import ClippedReducer
from quietgrad.sampling.samplers import PoissonDraws

Variant = Callable[[], AbstractContextManager[None]]

RADIUS = 1.0


@contextmanager
def _deviation(change):
    """Noise of another deviation than the ledger says: `change(std, divisor)`."""
    noisy = NoisyUpdate.noisy

    def changed(self, sums, *, std, divisor, **given):
        return noisy(self, sums, std=change(std, divisor), divisor=divisor, **given)

    with patch.object(NoisyUpdate, "noisy", changed):
        yield


def no_noise():
    return _deviation(lambda std, divisor: 1e-9 * std)


def noise_for_half_the_radius():
    return _deviation(lambda std, divisor: std / 2)


def noise_divided_twice():
    """By the batch size, once before and once after it was added."""
    return _deviation(lambda std, divisor: std / divisor)


@contextmanager
def clipping_of_the_batch_mean():
    """The mean of all gradients is clipped, not each of them; noise as if it were each.

    The engine refuses such sums twice, so its checks are silenced too.
    """
    noisy, backward = NoisyUpdate.noisy, PrivacyEngine.backward

    def clipped(self, sums, *, divisor, **given):
        length = torch.sqrt(sum(total.double().square().sum() for total in sums.values()))
        scale = float((RADIUS * divisor / length).clamp(max=1.0)) if sums else 1.0
        sums = {name: scale * total for name, total in sums.items()}
        return noisy(self, sums, divisor=divisor, **given)

    def unclipped(self, losses):
        with (
            patch.object(AutoS, "weights", lambda _, norms, radius: torch.ones_like(norms)),
            patch.object(ClippedReducer, "_check_bound"),
        ):
            backward(self, losses)

    with (
        patch("quietgrad.engine.engine.check_sums"),
        patch.object(NoisyUpdate, "noisy", clipped),
        patch.object(PrivacyEngine, "backward", unclipped),
    ):
        yield


@contextmanager
def sampling_rate_understated_tenfold():
    """The accountant is told a tenth of the rate at which samples are drawn."""
    understated = property(lambda draws: Poisson(draws.rate / 10))
    with patch.object(PoissonDraws, "accounting", understated):
        yield


VARIANTS: tuple[Variant, ...] = (
    no_noise,
    noise_for_half_the_radius,
    clipping_of_the_batch_mean,
    noise_divided_twice,
    sampling_rate_understated_tenfold,
)
