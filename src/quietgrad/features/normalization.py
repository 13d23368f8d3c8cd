"""Features to the same scale: each sample by itself, or by statistics that are paid for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad import noise as noises
from quietgrad._checks import require_positive
from quietgrad.accounting import FullBatch, GaussianEvent, Ledger

_SAMPLES_AT_A_TIME = 1024


def standardized(features: Tensor, groups: int = 1, epsilon: float = 1e-5) -> Tensor:
    """Each sample's channels, in groups, to mean zero and variance one: costs no privacy.

    Args:
        features: ``[N, C, ...]``.
        groups: of channels that are taken together.
        epsilon: added to variances.
    """
    if features.ndim < 2 or features.shape[1] % groups:
        raise ValueError(
            f"features of shape {tuple(features.shape)} in {groups} groups: expected [N, C, ...] "
            "with a multiple of them as C"
        )
    return torch.nn.functional.group_norm(features, groups, eps=epsilon)


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of every channel, known privately.

    Attributes:
        mean: ``[C]``.
        deviation: ``[C]``.
    """

    mean: Tensor
    deviation: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """``features[N, C, ...]`` with the mean taken off, divided by the deviation."""
        shape = (1, -1, *[1] * (features.ndim - 2))
        return (features - self.mean.view(shape)) / self.deviation.view(shape)


def private_statistics(
    features: Tensor,
    ledger: Ledger,
    *,
    noise_multiplier: float = 8.0,
    radius: float = 1.0,
    noise: str = "secure",
    seed: int | None = None,
) -> ChannelStatistics:
    """Means and deviations of all channels, released once with noise (Tramer and Boneh 2021).

    Every sample gives the means of its channels and of their squares, each cut to a Euclidean
    norm of ``radius``; both sums are released with Gaussian noise. A sample that is not finite
    gives nothing. The number of samples is public.

    Args:
        features: of the private samples, ``[N, C, ...]``.
        ledger: where the two releases are recorded before they are made; hand it to the engine
            that trains on the features, and its target includes them.
        noise_multiplier: of each release.
        radius: what each sample's means are cut to.
        noise: as for the engine.
        seed: makes it reproducible, and protects nobody.
    """
    require_positive("noise_multiplier", noise_multiplier)
    require_positive("radius", radius)
    if features.ndim < 2 or not len(features) or not features.is_floating_point():
        raise ValueError(
            f"features of shape {tuple(features.shape)} and {features.dtype}: expected [N, C, ...] "
            "of floating-point numbers"
        )
    source = noises.resolve(noise, seed)
    source.begin_step(0)
    recorded_as = noise if seed is None else "seeded"
    moments = []
    for power in (1, 2):
        parts = features.split(_SAMPLES_AT_A_TIME)
        total = torch.stack([_cut_sum(part, power, radius) for part in parts]).sum(0)
        ledger.record(GaussianEvent(noise_multiplier, FullBatch(), noise=recorded_as))
        (noisy,) = source.add([total], noise_multiplier * radius, float(len(features)))
        moments.append(noisy)
    mean, square = moments
    # Noise may have made a variance negative, or as good as nothing.
    variance = (square - mean.square()).clamp_min(1e-4 * radius**2 / len(mean))
    return ChannelStatistics(mean.to(features.dtype), variance.sqrt().to(features.dtype))


def _cut_sum(features: Tensor, power: int, radius: float) -> Tensor:
    """The sum over samples of the means of their channels, to a power, each cut to the radius."""
    values = features.double().pow(power)
    means: Tensor = values.flatten(2).mean(2) if values.ndim > 2 else values
    cut: Tensor = means * (radius / means.norm(dim=1, keepdim=True).clamp_min(radius))
    return cut.where(cut.isfinite().all(1, keepdim=True), 0.0).sum(0)
