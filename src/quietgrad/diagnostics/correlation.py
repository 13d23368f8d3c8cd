"""How far the sampling noise of the same samples stays the same from step to step. NOT PRIVATE.

After Figure 5a of "A Theory to Instruct Differentially-Private Learning via Clipping Bias
Reduction": what inner momentum can average out is the part that does not stay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import torch
from torch import Tensor

from quietgrad._checks import require_count
from quietgrad.diagnostics.gathering import TooFewSamplesError


class NoiseOverSteps:
    """The sampling noise g_i - g of a few samples at the last steps, g being their mean.

    It holds one gradient per sample and step.

    Args:
        window: how many steps are kept.
    """

    def __init__(self, window: int) -> None:
        self.window = require_count("window", window, at_least=1)
        self._noises: deque[dict[str, Tensor]] = deque(maxlen=window)

    def __len__(self) -> int:
        return len(self._noises)

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        """Keep the noise of one step; the oldest goes if there are more than the window holds.

        Args:
            gradients: parameter name -> gradients of the samples, the same ones every time.

        Raises:
            TooFewSamplesError: there is only one sample.
            ValueError: there are more or fewer than before.
        """
        count = _count(gradients)
        if count < 2:
            raise TooFewSamplesError(count, "probe")
        if self._noises and count != _count(self._noises[-1]):
            raise ValueError(
                f"{count} probes, but {_count(self._noises[-1])} before: expected the same samples"
                " in every step"
            )
        self._noises.append({name: each - each.mean(0) for name, each in gradients.items()})

    def correlation(self, window: int | None = None) -> tuple[float, ...]:
        """For K = 1 .. `window`, |mean of K successive noises| over |one noise|, both on average.

        Averages are over the samples, and over all places of K steps within the last `window`. It
        stays at 1 for noise that never changes, and falls as 1/sqrt(K) for independent noise.

        Args:
            window: how many of the last steps to look at; all that are kept by default.

        Raises:
            ValueError: there are not so many.
        """
        steps = len(self) if window is None else require_count("window", window, at_least=1)
        if not 1 <= steps <= len(self):
            raise ValueError(
                f"window={window!r} is not valid: {len(self)} steps are kept (of at most"
                f" {self.window}). Record more steps, or ask for fewer"
            )
        products = self._products(steps)
        lengths = [_mean_length(products, run) for run in range(1, steps + 1)]
        return tuple(length / lengths[0] if lengths[0] else 0.0 for length in lengths)

    def _products(self, steps: int) -> Tensor:
        """Inner products of each sample's noises at all pairs of steps, ``[B, steps, steps]``."""
        noises = list(self._noises)[-steps:]
        total = torch.zeros(_count(noises[0]), steps, steps, dtype=torch.float64)
        for name in noises[0]:
            by_sample = torch.stack([noise[name].flatten(1) for noise in noises], 1).double()
            total += (by_sample @ by_sample.mT).cpu()
        return total


def _mean_length(products: Tensor, run: int) -> float:
    """Of the means of `run` successive noises."""
    last = products.shape[1] - run
    squares = [
        products[:, start : start + run, start : start + run].sum((1, 2)) / run**2
        for start in range(last + 1)
    ]
    return torch.stack(squares).clamp_min(0).sqrt().mean().item()


def _count(gradients: Mapping[str, Tensor]) -> int:
    return len(next(iter(gradients.values())))
