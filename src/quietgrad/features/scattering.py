"""Wavelet scattering of images: moduli of wavelet coefficients, averaged (Bruna and Mallat 2013).

Nothing in it is learned, so it costs no privacy. Kymatio, whose conventions it follows, cannot be
imported beside current versions of SciPy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad._checks import require_count

_BANDWIDTH = 0.8
_FREQUENCY = 3 * math.pi / 4
_FOLDS = range(-2, 3)  # a wavelet reaches beyond the image, and comes in again on the other side


def morlet(size: tuple[int, int], scale: int, angle: int, angles: int) -> Tensor:
    """The Fourier transform of a wavelet.

    Args:
        size: of the grid.
        scale: its width is 2 to this power.
        angle: which of so many.
        angles: between 0 and pi.
    """
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
    """Real, for the filter is symmetric."""
    spectrum: Tensor = torch.fft.fft2(filter_)
    return spectrum.real


def _gabor(
    size: tuple[int, int], width: float, direction: float, frequency: float, slant: float
) -> Tensor:
    """A wave under an elongated Gaussian of weight one, folded onto the grid."""
    cosine, sine = math.cos(direction), math.sin(direction)
    height, length = size
    total = torch.zeros(size, dtype=torch.complex128)
    for down in _FOLDS:
        for right in _FOLDS:
            y = torch.arange(height, dtype=torch.float64)[:, None] + down * height
            x = torch.arange(length, dtype=torch.float64)[None, :] + right * length
            along, across = y * cosine + x * sine, -y * sine + x * cosine
            envelope = -(along.square() + (slant * across).square()) / (2 * width**2)
            total += torch.polar(envelope.exp(), frequency * along)
    return total / (2 * math.pi * width**2 / slant)


_IMAGES_AT_A_TIME = 128


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
            return torch.empty(0, *self._shape(images.shape[1]))
        return torch.cat([self._features(part) for part in images.float().split(_IMAGES_AT_A_TIME)])

    def _features(self, images: Tensor) -> Tensor:
        padded = F.pad(images, [self._step] * 4, mode="reflect")
        maps = torch.stack(list(self._orders(torch.fft.fft2(padded))), 2)
        return maps.flatten(1, 2)

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

    def _shape(self, channels: int) -> tuple[int, int, int]:
        height, width = (side // self._step for side in self._size)
        return channels * self.channels, height, width
