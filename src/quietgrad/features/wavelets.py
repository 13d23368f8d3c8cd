"""Morlet wavelets on a grid, in the frequency domain (Bruna and Mallat 2013).

The constants are those of Kymatio (Andreux et al. 2020), so that features compare with published
ones.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

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
