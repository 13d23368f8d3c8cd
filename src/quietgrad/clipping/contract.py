"""The one contract of every clipping function."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor

WeightFunction = Callable[[Tensor, float], Tensor]
"""A plain `weights(norms, radius)`, as `register` accepts it."""


class Clipping(ABC):
    """A weight for every sample, from its gradient norm and the radius of its group.

    Guarantee: w(n; R) * n <= bound(R) for every norm n >= 0, so adding or leaving out one sample
    moves the weighted sum of a group's gradients by at most bound(R).

    A subclass is a frozen dataclass with hashable fields: `resolve` verifies an instance once, and
    what was verified must not change afterwards.
    """

    @abstractmethod
    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """The weight of each norm: same shape and dtype (float32 or float64), finite, at least 0.

        A weight must depend on its own norm alone. One that looks at the other samples (their
        maximum, mean or number) makes the sum of all samples move when one of them leaves.
        """

    def bound(self, radius: float) -> float:
        """An upper bound of w(n; R) * n over all norms n: the sensitivity of one group."""
        return radius
