"""Cryptographic noise: nobody can predict it, and the floating-point grid tells nothing.

The bits are AES-256-CTR's, with a key from the operating system for every call. The sum of total
and noise is rounded to a grid that depends on the noise's scale alone: which doubles a Gaussian
sampler can reach depends on what it is added to, and would tell it (Mironov 2012, "On Significance
of the Least Significant Bits for Differential Privacy"). See docs/design/0010-noise.md.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from quietgrad.keystream import BLOCK_BYTES, Words
from quietgrad.noise.contract import checked_divisor, checked_std, grid_of, require_apart
from quietgrad.noise.gaussians import Gaussians
from quietgrad.noise.keys import CallKeys
from quietgrad.noise.pieces import CHUNK, Piece, chunks_of, joined, room_for, write

_BLOCKS = CHUNK * 8 // BLOCK_BYTES
_FURTHER = 1 << 64  # more blocks than all chunks of a call take together
# The grid is 2^-12 to 2^-13 of the noise: far coarser than a double, far finer than matters.
_GRID_BITS = 12


class SecureNoise:
    """Gaussian noise from a cryptographic stream, in double precision, on a grid.

    Args:
        seed: makes the noise reproducible. For tests and for comparing runs only: noise that can
            be recomputed protects nobody.
    """

    description = "secure (AES-256-CTR, on a grid)"

    def __init__(self, seed: int | None = None) -> None:
        self._keys = CallKeys("noise", seed)

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only."""
        self._keys.begin_step(step)

    def add(self, totals: Sequence[Tensor], std: float, divisor: float = 1.0) -> list[Tensor]:
        """The totals with noise, rounded to the grid, then divided."""
        std, divisor = checked_std(std), checked_divisor(divisor)
        require_apart(totals)
        noisy = [room_for(total) for total in totals]
        _add_noise(chunks_of(totals, noisy), self._keys.next(), std, divisor)
        return [n.to(total.device) for n, total in zip(noisy, totals, strict=True)]


def _add_noise(chunks: list[list[Piece]], key: bytes, std: float, divisor: float) -> None:
    """Every chunk with the bits of its own place in the key's stream."""
    grid = grid_of(std, _GRID_BITS)
    sizes = [sum(len(piece.total) for piece in chunk) for chunk in chunks]
    pairs = [size + size % 2 for size in sizes]
    words, gaussians = Words(max(pairs, default=0)), Gaussians(max(pairs, default=0))
    for index, (chunk, count) in enumerate(zip(chunks, pairs, strict=True)):
        bits = words.fill(key, index * _BLOCKS, count).view("<i8")
        more = partial(_further_words, key, index)
        values = gaussians.of(torch.from_numpy(bits), std / grid, more)
        write(_on_grid(joined(chunk), values, grid).div_(divisor), chunk)


def _further_words(key: bytes, index: int, count: int) -> Tensor:
    """Words of a part of the stream that no chunk takes its own from."""
    words = Words(count).fill(key, _FURTHER + index * _BLOCKS, count)
    return torch.from_numpy(words.view("<i8"))


def _on_grid(total: Tensor, values: Tensor, grid: float) -> Tensor:
    """Total plus noise (in units of the grid), rounded to the grid."""
    # Exact, because the grid is a power of two, but for the one rounding of a double's addition.
    return values[: len(total)].add_(total, alpha=1 / grid).round_().mul_(grid)
