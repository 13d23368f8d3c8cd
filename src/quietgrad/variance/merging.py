"""Gradients of one sample at several weights become one before its norm is taken."""

from __future__ import annotations

from quietgrad.capture import Sink
from quietgrad.errors import ChangedGradientError
from quietgrad.factors import Factor, combine


class Earlier:
    """A sink that holds what backward passes at past weights bring."""

    def __init__(self) -> None:
        self.factors: dict[str, list[Factor]] = {}

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Hold a parameter's factor."""
        self.factors.setdefault(name, []).append(factor)


class Merging:
    """A sink for the last pass, which hands on each parameter's factors as one.

    Nothing is materialized for it: factors of one kind become one factor with more positions.

    Args:
        earlier: of the passes before.
        sink: where to.
    """

    def __init__(self, earlier: Earlier, sink: Sink) -> None:
        self._earlier, self._sink = earlier.factors, sink

    def parameter_done(self, name: str, factor: Factor) -> None:
        """The last of a parameter's factors."""
        self._sink.parameter_done(name, combine([*self._unchanged(name), factor]))

    def finish(self) -> None:
        """Hand on parameters that were used at past weights only."""
        for name in list(self._earlier):
            self._sink.parameter_done(name, combine(self._unchanged(name)))

    def _unchanged(self, name: str) -> list[Factor]:
        factors = self._earlier.pop(name, [])
        if any(factor.changed() for factor in factors):
            raise ChangedGradientError(name)
        return factors
