"""Noise in the precision of the parameters: for experiments, and for devices of their own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from quietgrad.keystream import BLOCK_BYTES, Words
from quietgrad.noise.contract import checked_divisor, checked_std, released_dtype, require_apart
from quietgrad.noise.keys import CallKeys
from quietgrad.noise.pieces import CHUNK, Piece, chunks_of, joined, room_for, write
from quietgrad.noise.single_gaussians import SingleGaussians

_BLOCKS = CHUNK * 4 // BLOCK_BYTES


class FastNoise:
    """Gaussian noise of single precision, drawn where the total is.

    On a CPU the bits are cryptographic, but a float has few digits: the tail ends at 6.6 standard
    deviations, and sums are released as floats come, whose last bits may tell of the total. On
    other devices it is torch's generator, and who sees enough of its noise could tell the rest.

    Args:
        seed: makes the noise reproducible. For tests and for comparing runs only.
    """

    description = "fast (NOT cryptographic)"

    def __init__(self, seed: int | None = None) -> None:
        self._keys = CallKeys("fast noise", seed)

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only."""
        self._keys.begin_step(step)

    def add(self, totals: Sequence[Tensor], std: float, divisor: float = 1.0) -> list[Tensor]:
        """The totals with noise, as floats come, divided."""
        std, divisor = checked_std(std), checked_divisor(divisor)
        require_apart(totals)
        here = [total for total in totals if total.device.type == "cpu"]
        rooms = [room_for(total) for total in here]
        _add_noise(chunks_of(here, rooms), self._keys.next(), std, divisor)
        released = iter(rooms)
        return [
            next(released) if t.device.type == "cpu" else self._on_device(t, std, divisor)
            for t in totals
        ]

    def _on_device(self, total: Tensor, std: float, divisor: float) -> Tensor:
        seed = int.from_bytes(self._keys.next()[:8], signed=True)
        noise = torch.empty(total.shape, dtype=released_dtype(total), device=total.device)
        noise.normal_(generator=torch.Generator(total.device).manual_seed(seed))
        return noise.mul_(std).add_(total).div_(divisor)


def _add_noise(chunks: list[list[Piece]], key: bytes, std: float, divisor: float) -> None:
    """Every chunk with the bits of its own place in the key's stream."""
    sizes = [sum(len(piece.total) for piece in chunk) for chunk in chunks]
    room = max((size + size % 2 for size in sizes), default=0)
    words, gaussians = Words(room // 2), SingleGaussians(room)
    for index, (chunk, size) in enumerate(zip(chunks, sizes, strict=True)):
        bits = words.fill(key, index * _BLOCKS, (size + 1) // 2).view("<i4")
        total = joined(chunk)
        if total.dtype == torch.float64:  # scaled in its own precision
            values = gaussians.of(torch.from_numpy(bits), 1.0)[:size].double().mul_(std / divisor)
        else:
            values = gaussians.of(torch.from_numpy(bits), std / divisor)[:size]
        if len(chunk) == 1 and total.dtype == chunk[0].noisy.dtype:
            torch.add(values, total, alpha=1 / divisor, out=chunk[0].noisy)  # saves a pass
        else:
            write(values.add_(total, alpha=1 / divisor), chunk)
