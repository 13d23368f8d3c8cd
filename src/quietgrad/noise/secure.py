"""Cryptographic noise: nobody can predict it, and the floating-point grid tells nothing.

The bits are AES-256-CTR's, with a key from the operating system for every call. The sum of total
and noise is rounded to a grid that depends on the noise's scale alone: which doubles a Gaussian
sampler can reach depends on what it is added to, and would tell it (Mironov 2012, "On Significance
of the Least Significant Bits for Differential Privacy"). See docs/design/0010-noise.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from quietgrad.keystream import BLOCK_BYTES, Words
from quietgrad.noise.contract import checked_std, grid_of, released_dtype
from quietgrad.noise.gaussians import Gaussians
from quietgrad.noise.keys import CallKeys

# Entries at a time: small enough for the cache, large enough for torch to use all its threads.
CHUNK = 1 << 18
_BLOCKS = CHUNK * 8 // BLOCK_BYTES
_FURTHER = 1 << 64  # more blocks than all chunks of a call take together
# The grid is 2^-12 to 2^-13 of the noise: far coarser than a double, far finer than matters.
_GRID_BITS = 12


class Piece(NamedTuple):
    """A run of entries, flat: where they come from and where they go to."""

    total: Tensor
    noisy: Tensor


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

    def add(self, totals: Sequence[Tensor], std: float) -> list[Tensor]:
        """The totals with noise, rounded to the grid."""
        std = checked_std(std)
        noisy = [_room_for(total) for total in totals]
        pieces = map(Piece, (t.cpu().reshape(-1) for t in totals), (n.view(-1) for n in noisy))
        _add_noise(list(_packed(pieces)), self._keys.next(), std)
        return [n.to(total.device) for n, total in zip(noisy, totals, strict=True)]


def _room_for(total: Tensor) -> Tensor:
    """Where to release a total: in its own memory if that will do."""
    dtype = released_dtype(total)
    if total.device.type == "cpu" and total.dtype == dtype and total.is_contiguous():
        return total
    return torch.empty(total.shape, dtype=dtype)


def _packed(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Chunks of at most ``CHUNK`` entries: large tensors are cut, small ones put together."""
    chunk: list[Piece] = []
    room = CHUNK
    for piece in pieces:
        for part in _cut(piece, room):
            chunk.append(part)
            room -= len(part.total)
            if not room:
                yield chunk
                chunk, room = [], CHUNK
    if chunk:
        yield chunk


def _cut(piece: Piece, room: int) -> Iterator[Piece]:
    """The first part as large as there is room, the others as large as a chunk."""
    size = len(piece.total)
    if size <= room:
        yield piece
        return
    ends = [*range(room, size, CHUNK), size]
    for start, end in pairwise([0, *ends]):
        yield Piece(piece.total[start:end], piece.noisy[start:end])


def _add_noise(chunks: list[list[Piece]], key: bytes, std: float) -> None:
    """Every chunk with the bits of its own place in the key's stream."""
    grid = grid_of(std, _GRID_BITS)
    sizes = [sum(len(piece.total) for piece in chunk) for chunk in chunks]
    pairs = [size + size % 2 for size in sizes]
    words, gaussians = Words(max(pairs, default=0)), Gaussians(max(pairs, default=0))
    for index, (chunk, count) in enumerate(zip(chunks, pairs, strict=True)):
        bits = words.fill(key, index * _BLOCKS, count).view("<i8")
        more = partial(_further_words, key, index)
        _release(chunk, gaussians.of(torch.from_numpy(bits), std / grid, more), grid)


def _further_words(key: bytes, index: int, count: int) -> Tensor:
    """Words of a part of the stream that no chunk takes its own from."""
    words = Words(count).fill(key, _FURTHER + index * _BLOCKS, count)
    return torch.from_numpy(words.view("<i8"))


def _release(chunk: list[Piece], values: Tensor, grid: float) -> None:
    """Round total plus noise (in units of the grid) to the grid, and write it where it belongs."""
    totals, released = zip(*chunk, strict=True)
    total = totals[0] if len(chunk) == 1 else torch.cat(totals)
    values = values[: len(total)]
    # Exact, because the grid is a power of two, but for the one rounding of a double's addition.
    values.add_(total, alpha=1 / grid).round_().mul_(grid)
    for room, noisy in zip(released, values.split([len(each) for each in released]), strict=True):
        room.copy_(noisy)
