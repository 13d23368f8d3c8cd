"""Features of images that need no training: wavelet scattering, and two ways to normalize it.

Scattering averages moduli of wavelet coefficients (Bruna and Mallat 2013). Nothing in it is
learned, so it costs no privacy. Kymatio, whose conventions it follows, cannot be imported beside
current versions of SciPy. `standardized` normalizes each sample by itself; `private_statistics`
releases means and deviations with noise, which is recorded in a ledger.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad._checks import require_count, require_positive
from quietgrad.accounting.events import FullBatch, GaussianEvent
from quietgrad.accounting.ledger import Ledger
from quietgrad.capture.refusals import refuse_distributed
from quietgrad.noise import resolve as resolve_noise

__all__ = ["ChannelStatistics", "Scattering", "private_statistics", "standardized"]

_IMAGES_AT_A_TIME = 128
_SAMPLES_AT_A_TIME = 1024


class Scattering:
    """Features ``[N, C * channels, H / 2^scales, W / 2^scales]`` of images ``[N, C, H, W]``.

    For two scales and eight angles there are 81 channels to each of the image's: the image
    averaged, 16 averaged moduli of wavelet coefficients, and 64 of the coefficients of those.

    Args:
        size: height and width of the images; one number for both if they are square.
        scales: J; images are averaged over squares of 2^J.
        angles: L, of the wavelets at each scale.
    """

    def __init__(self, size: int | tuple[int, int], scales: int = 2, angles: int = 8) -> None:
        self._scales = require_count("scales", scales, at_least=1)
        self._angles = angles = require_count("angles", angles, at_least=1)
        size = (size, size) if isinstance(size, int) else size
        self._step = 2**scales
        if min(size) < self._step or any(side % self._step for side in size):
            raise ValueError(
                f"size={tuple(size)}: expected sides that are multiples of {self._step}, as"
                f" scales={scales} needs"
            )
        self._size = tuple(size)
        padded = (size[0] + 2 * self._step, size[1] + 2 * self._step)
        self._wavelets = [
            (scale, morlet(padded, scale, angle, angles).float())
            for scale in range(scales)
            for angle in range(angles)
        ]
        self._lowpass = lowpass(padded, scales).float()

    @property
    def channels(self) -> int:
        """For each channel of an image."""
        first = len(self._wavelets)
        second = sum(b > a for a, _ in self._wavelets for b, _ in self._wavelets)
        return 1 + first + second

    def __repr__(self) -> str:
        return f"Scattering({self._size}, scales={self._scales}, angles={self._angles})"

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """The features of images, floating-point numbers, a few at a time."""
        if images.ndim != 4 or tuple(images.shape[2:]) != self._size:
            raise ValueError(
                f"images of shape {tuple(images.shape)}: expected [N, channels, "
                f"{self._size[0]}, {self._size[1]}]"
            )
        if not images.is_floating_point():
            raise TypeError(
                f"images of {images.dtype}: expected floating-point numbers. Divide bytes by 255 "
                "(images.float() / 255)"
            )
        if not len(images):
            height, width = (side // self._step for side in self._size)
            return images.new_empty(0, images.shape[1] * self.channels, height, width)
        parts = []
        for part in images.float().split(_IMAGES_AT_A_TIME):
            padded = F.pad(part, [self._step] * 4, mode="reflect")
            parts.append(torch.stack(list(self._orders(torch.fft.fft2(padded))), 2).flatten(1, 2))
        return torch.cat(parts)

    def _orders(self, image: Tensor) -> Iterator[Tensor]:
        """Averages of order 0; then of order 1, and of order 2 behind all of them."""
        yield self._averaged(image)
        moduli = [
            (scale, torch.fft.fft2(torch.fft.ifft2(image * wavelet).abs()))
            for scale, wavelet in self._wavelets
        ]
        for _, modulus in moduli:
            yield self._averaged(modulus)
        for first, modulus in moduli:
            for second, wavelet in self._wavelets:
                if second > first:
                    deeper = torch.fft.ifft2(modulus * wavelet).abs()
                    yield self._averaged(torch.fft.fft2(deeper))

    def _averaged(self, spectrum: Tensor) -> Tensor:
        smooth: Tensor = torch.fft.ifft2(spectrum * self._lowpass)
        return smooth.real[..., :: self._step, :: self._step][..., 1:-1, 1:-1]  # no margin


_BANDWIDTH = 0.8
_FREQUENCY = 3 * math.pi / 4
_FOLDS = range(-2, 3)  # a wavelet reaches beyond the image: periods that are folded onto it


def morlet(size: tuple[int, int], scale: int, angle: int, angles: int) -> Tensor:
    """The Fourier transform of wavelet number `angle` of `angles`, of width ``2**scale``."""
    direction = (angles // 2 - 1 - angle) * math.pi / angles
    width = _BANDWIDTH * 2.0**scale
    slant, frequency = 4.0 / angles, _FREQUENCY / 2.0**scale
    wave = _gabor(size, width, direction, frequency, slant)
    bump = _gabor(size, width, direction, 0.0, slant)
    # Its mean is zero.
    return _spectrum(wave - wave.sum() / bump.sum() * bump)


def lowpass(size: tuple[int, int], scale: int) -> Tensor:
    """The Fourier transform of a Gaussian as wide as the wavelets of the largest scale."""
    return _spectrum(_gabor(size, _BANDWIDTH * 2.0 ** (scale - 1), 0.0, 0.0, 1.0))


def _spectrum(filter_: Tensor) -> Tensor:
    """The Fourier transform of a symmetric filter, which is real."""
    spectrum: Tensor = torch.fft.fft2(filter_)
    return spectrum.real


def _gabor(
    size: tuple[int, int], width: float, direction: float, frequency: float, slant: float
) -> Tensor:
    """A wave under an elongated Gaussian of weight one, folded onto the grid."""
    cosine, sine = math.cos(direction), math.sin(direction)
    height, length = size
    total = torch.zeros(size, dtype=torch.complex128, device="cpu")
    for down in _FOLDS:
        for right in _FOLDS:
            y = torch.arange(height, dtype=torch.float64, device="cpu")[:, None] + down * height
            x = torch.arange(length, dtype=torch.float64, device="cpu")[None, :] + right * length
            along, across = y * cosine + x * sine, -y * sine + x * cosine
            envelope = -(along.square() + (slant * across).square()) / (2 * width**2)
            total += torch.polar(envelope.exp(), frequency * along)
    return total / (2 * math.pi * width**2 / slant)


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
    return F.group_norm(features, groups, eps=epsilon)


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
    refuse_distributed()  # each rank would release, and record one release
    require_positive("noise_multiplier", noise_multiplier)
    require_positive("radius", radius)
    if not isinstance(ledger, Ledger):
        raise TypeError(
            f"ledger is a {type(ledger).__name__}: expected a quietgrad.accounting.Ledger, where "
            "the two releases are recorded. Make one with Ledger(), and hand it to the engine too"
        )
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise TypeError(f"seed={seed!r} is not valid: expected an integer, or None")
    if features.ndim < 2 or not features.numel():
        raise ValueError(
            f"features of shape {tuple(features.shape)}: expected [N, C, ...], none of them zero"
        )
    _require_numbers(features)
    features = features.detach()
    source = resolve_noise(noise, seed)
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
    _warn_if_below_noise(variance, noise_multiplier * radius / len(features))
    variance = variance.clamp_min(1e-4 * radius**2 / len(mean))
    return ChannelStatistics(mean.to(features.dtype), variance.sqrt().to(features.dtype))


def _require_numbers(features: Tensor) -> None:
    if not features.is_floating_point():
        raise ValueError(
            f"features of {features.dtype}: expected floating-point numbers, such as the bytes of "
            "images divided by 255"
        )


def _warn_if_below_noise(variance: Tensor, noise: float) -> None:
    """Uses only what was released."""
    below = int((variance < noise).sum())
    if below:
        warnings.warn(
            f"the variance of {below} of {len(variance)} channels is below the noise, {noise:.2g}"
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
