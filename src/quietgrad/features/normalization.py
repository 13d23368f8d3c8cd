"""Features to the same scale: each sample by itself, or by statistics that are paid for."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad import noise as noises
from quietgrad._checks import require_positive
from quietgrad.accounting.events import FullBatch, GaussianEvent
from quietgrad.accounting.ledger import Ledger

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
            f"features of shape {tuple(features.shape)}, groups={groups}: expected [N, C, ...] "
            "with a multiple of the groups as C"
        )
    return torch.nn.functional.group_norm(features, groups, eps=epsilon)


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of every channel, known privately.

    Call it with features to normalize them, of the training and of the test data alike.

    Attributes:
        mean: ``[C]``.
        deviation: ``[C]``.
    """

    mean: Tensor
    deviation: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """``features[N, C, ...]`` with the mean taken off, divided by the deviation.

        Args:
            features: of any number of further dimensions, or of none.
        """
        if features.ndim < 2 or features.shape[1] != len(self.mean):
            raise ValueError(
                f"features of shape {tuple(features.shape)}: expected [N, {len(self.mean)}, ...], "
                "the channels that the statistics are of. Flatten them afterwards"
            )
        _require_numbers(features)
        shape = (1, -1, *[1] * (features.ndim - 2))
        mean, deviation = (each.to(features).view(shape) for each in (self.mean, self.deviation))
        return (features - mean) / deviation


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
    gives nothing. The number of samples is public. The noise on a mean, or a mean square, is
    ``noise_multiplier * radius / N``: where a variance comes out smaller than that, a warning says
    that it is mostly noise. ::

        ledger = qg.accounting.Ledger()
        statistics = qg.features.private_statistics(features, ledger)
        features = statistics(features)
        engine = qg.PrivacyEngine(..., ledger=ledger)      # its target includes the statistics

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
    _require_recordable(ledger, seed)
    if features.ndim < 2 or not features.numel():
        raise ValueError(
            f"features of shape {tuple(features.shape)}: expected [N, C, ...], none of them zero"
        )
    _require_numbers(features)
    features = features.detach()
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
    variance = square - mean.square()
    _warn_if_drowned(variance, noise_multiplier * radius / len(features))
    variance = variance.clamp_min(1e-4 * radius**2 / len(mean))
    return ChannelStatistics(mean.to(features.dtype), variance.sqrt().to(features.dtype))


def _require_numbers(features: Tensor) -> None:
    if not features.is_floating_point():
        raise ValueError(
            f"features of {features.dtype}: expected floating-point numbers, such as the bytes of "
            "images divided by 255"
        )


def _require_recordable(ledger: object, seed: object) -> None:
    if not isinstance(ledger, Ledger):
        raise TypeError(
            f"ledger is a {type(ledger).__name__}: expected a quietgrad.accounting.Ledger, where "
            "the two releases are recorded. Make one with Ledger(), and hand it to the engine too"
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed={seed!r} is not valid: expected an integer, or None")


def _warn_if_drowned(variance: Tensor, noise: float) -> None:
    """Looks at nothing but what was released."""
    drowned = int((variance < noise).sum())
    if drowned:
        warnings.warn(
            f"the variance of {drowned} of {len(variance)} channels is below the noise, {noise:.2g}"
            " (noise_multiplier * radius / number of samples), and says little. Take more samples, "
            "or a smaller noise_multiplier, which costs more epsilon; or normalize each sample by "
            "itself with quietgrad.features.standardized, which costs none.",
            stacklevel=3,
        )


def _cut_sum(features: Tensor, power: int, radius: float) -> Tensor:
    """The sum over samples of the means of their channels, to a power, each cut to the radius."""
    values = features.double().pow(power)
    means: Tensor = values.flatten(2).mean(2) if values.ndim > 2 else values
    cut: Tensor = means * (radius / means.norm(dim=1, keepdim=True).clamp_min(radius))
    return cut.where(cut.isfinite().all(1, keepdim=True), 0.0).sum(0)
