"""Noise of ordinary statistical generators: for experiments, and for devices of their own."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from quietgrad.noise.contract import checked_std, released_dtype
from quietgrad.noise.keys import CallKeys


class FastNoise:
    """Gaussian noise drawn where the total is: numpy's PCG64 on CPU, torch's generator elsewhere.

    Good noise statistically, and seeded with the operating system's entropy; but who sees enough of
    it could in principle tell the rest, and floats are released as they come.

    Args:
        seed: makes the noise reproducible. For tests and for comparing runs only.
    """

    description = "fast (NOT cryptographic)"

    def __init__(self, seed: int | None = None) -> None:
        self._keys = CallKeys("fast noise", seed)

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only."""
        self._keys.begin_step(step)

    def add(self, totals: Sequence[Tensor], std: float) -> list[Tensor]:
        """The totals with noise, as floats come."""
        std = checked_std(std)
        return [_standard(t, self._keys.next()).mul_(std).add_(t) for t in totals]


def _standard(like: Tensor, key: bytes) -> Tensor:
    dtype = released_dtype(like)
    if like.device.type == "cpu":
        # torch's own CPU generator uses only 32 bits of its seed, few enough to try them all.
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(key)))
        drawn = np.float64 if dtype == torch.float64 else np.float32
        values = generator.standard_normal(tuple(like.shape), dtype=drawn)
        return torch.from_numpy(np.asarray(values))
    source = torch.Generator(like.device).manual_seed(int.from_bytes(key[:8], signed=True))
    noise = torch.empty(like.shape, dtype=dtype, device=like.device)
    return noise.normal_(generator=source)
