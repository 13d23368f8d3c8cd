"""Algorithm 1 of "... via Clipping Bias Reduction": what inner momentum is an economy of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from quietgrad import clipping as clippings
from quietgrad._checks import require_rate
from quietgrad.clipping import Clipping
from quietgrad.functional import per_sample_grads


class PerSampleMomenta:
    """An exponential average of the gradients of every single sample, kept for all of them.

    For small models and data, to compare with: memory grows with samples times parameters, every
    sample takes part in every step, and there is neither noise nor a ledger. Not private.

    Args:
        model: any module.
        closure: computes the losses of all samples, in the same order each time.
        gamma: the weight of the latest gradient; of the average before it, the rest.
        clipping: what each momentum is clipped by; the paper normalizes it.
        radius: to which norm.
    """

    def __init__(
        self,
        model: nn.Module,
        closure: Callable[[], Tensor],
        gamma: float,
        *,
        clipping: str | Clipping = "auto-v",
        radius: float = 1.0,
    ) -> None:
        self._model, self._closure = model, closure
        self._gamma = require_rate("gamma", gamma)
        self._clipping, self._radius = clippings.resolve(clipping), radius
        self._momenta = per_sample_grads(model, closure)

    def clipped_sum(self) -> dict[str, Tensor]:
        """The sum of the clipped momenta by parameter (line 4)."""
        flat = torch.cat([rows.flatten(1) for rows in self._momenta.values()], 1)
        weights = self._clipping.weights(flat.norm(dim=1), self._radius)
        return {
            name: torch.einsum("b,b...->...", weights, rows) for name, rows in self._momenta.items()
        }

    def update(self) -> None:
        """Average in the gradients at the weights as they are now (line 7)."""
        for name, rows in per_sample_grads(self._model, self._closure).items():
            self._momenta[name].mul_(1 - self._gamma).add_(rows, alpha=self._gamma)
