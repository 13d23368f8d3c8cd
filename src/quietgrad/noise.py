"""The noise that makes a release private: where it comes from, and that it never comes twice."""

import hashlib
import os
import secrets
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from quietgrad._checks import require_positive

_DRAWN_AS = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    # Half precision would round the noise to a few thousand values, and the tail away.
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}

_NOISE = int.from_bytes(b"noise")  # keeps a seed's noise apart from whatever else it seeds


class GaussianNoise:
    """A stream of Gaussian noise with its own generators, one per device.

    It is seeded with the operating system's entropy, neither reads nor moves the global generators
    of torch and numpy, and never gives the same draw twice. Its state is a secret: whoever knows it
    can subtract the noise. So it cannot be pickled, a copy starts afresh, and so does a forked
    process.

    Args:
        seed: makes the stream reproducible. For tests and for comparing runs only: noise that can
            be recomputed protects nobody.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._step = 0
        self._process = os.getpid()
        self._cpu: np.random.Generator | None = None
        self._others: dict[torch.device, torch.Generator] = {}

    def begin_step(self, step: int) -> None:
        """With a seed, the noise of a step depends on its number only, so that it can be resumed.

        Without one nothing changes: the stream goes on.
        """
        if self._seed is not None:
            self._step, self._cpu, self._others = step, None, {}

    def sample(self, like: Tensor, std: float) -> Tensor:
        """Noise with the shape and device of `like` and standard deviation `std` > 0.

        It is float64 for a float64 tensor and float32 for float32 and the half types: add it before
        rounding to a half type, not after.
        """
        require_positive("std", std)
        dtype = _drawn_dtype(like)
        self._start_afresh_after_fork()
        if like.device.type == "cpu":
            return self._sample_cpu(like.shape, dtype).mul_(std)
        noise = torch.empty(like.shape, dtype=dtype, device=like.device)
        return noise.normal_(std=std, generator=self._device_generator(like.device))

    def _sample_cpu(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        # torch's own CPU generator uses only 32 bits of its seed, few enough to try them all.
        if self._cpu is None:
            seed = None if self._seed is None else [_NOISE, self._seed, self._step]
            self._cpu = np.random.Generator(np.random.PCG64(seed))
        drawn = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(np.asarray(self._cpu.standard_normal(tuple(shape), dtype=drawn)))

    def _device_generator(self, device: torch.device) -> torch.Generator:
        if device not in self._others:
            generator = torch.Generator(device)
            generator.manual_seed(self._device_seed(device))
            self._others[device] = generator
        return self._others[device]

    def _device_seed(self, device: torch.device) -> int:
        if self._seed is None:
            return secrets.randbits(64)
        # Devices must not share a stream: equal noise on two of them could be subtracted.
        digest = hashlib.sha256(f"{self._seed}:{self._step}:{device}".encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def _start_afresh_after_fork(self) -> None:
        """A forked child has its parent's state and would repeat its noise."""
        if self._seed is None and self._process != os.getpid():
            self._cpu, self._others = None, {}
            self._process = os.getpid()

    def __copy__(self) -> "GaussianNoise":
        return GaussianNoise()

    def __deepcopy__(self, memo: dict[int, Any]) -> "GaussianNoise":
        return GaussianNoise()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "GaussianNoise cannot be pickled: with its state the noise could be subtracted."
            " Save what you need without it, and make a new one when you resume"
        )


def _drawn_dtype(like: Tensor) -> torch.dtype:
    if like.dtype not in _DRAWN_AS:
        expected = ", ".join(str(dtype) for dtype in _DRAWN_AS)
        raise TypeError(f"no noise for a tensor of {like.dtype}: expected one of {expected}")
    return _DRAWN_AS[like.dtype]
