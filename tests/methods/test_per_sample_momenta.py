"""Algorithm 1 keeps what inner momentum computes again: with enough past weights they agree."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad import clipping as clippings
from quietgrad import per_sample_grads

from .helpers import COUNT, attach, losses, made, step, weights_of


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
        clipping: str = "auto-v",
        radius: float = 1.0,
    ) -> None:
        self._model, self._closure = model, closure
        self._gamma = gamma
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


def test_inner_momentum_with_all_past_weights_is_algorithm_1():
    """Normalized, so that the factor gamma does not matter."""
    model, data = made("mlp")
    x, y = data.tensors
    options = qg.InnerOuter(length=50, inner=0.5, outer=None, start="repeat")
    engine = attach(model, data, momentum=options, clipping="auto-v")
    twin, _ = made("mlp")
    reference = PerSampleMomenta(twin, lambda: losses(twin, x, y), gamma=0.5)
    for _ in range(4):
        step(engine, model)
        with torch.no_grad():
            for name, total in reference.clipped_sum().items():
                twin.get_parameter(name).sub_(total, alpha=0.5 / COUNT)
        reference.update()
        for name, weights in weights_of(model).items():
            torch.testing.assert_close(weights, weights_of(twin)[name], rtol=1e-7, atol=1e-8)
