"""The state of inner-outer momentum: past weights, and what was released before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.variance.inner_outer import InnerOuter

Weights = Mapping[str, Tensor]


class Momentum:
    """Keeps the last weights, goes back to them, and adds up what is released.

    All of it is public: weights that were released, and sums that noise covers.

    Args:
        options: how much of what.
        trained: the parameters as they are now, by name.
    """

    def __init__(
        self, options: InnerOuter, trained: Callable[[], Mapping[str, nn.Parameter]]
    ) -> None:
        self._options, self._trained = options, trained
        self._past: list[dict[str, Tensor]] = []  # the latest first
        self._outer: list[Tensor] | None = None

    @property
    def needs_closure(self) -> bool:
        """Whether losses have to be computed more than once."""
        return self._options.past > 0

    def past_visits(self) -> list[tuple[float, Weights]]:
        """Past weights, the oldest first, and how much their gradients count."""
        powers = [self._options.inner**age for age in range(1, self._options.past + 1)]
        visits: list[tuple[float, Weights]] = list(zip(powers, self._past, strict=False))
        if self._options.start == "repeat" and visits:
            missing = sum(powers[len(visits) :])
            power, oldest = visits.pop()
            visits.append((power + missing, oldest))
        return visits[::-1]

    def present_weight(self) -> float:
        """How much the gradients at the current weights count."""
        if self._options.start == "repeat" and not self._past:
            return sum(self._options.inner**age for age in range(self._options.past + 1))
        return 1.0

    @contextmanager
    def at(self, weights: Weights) -> Iterator[None]:
        """The model has these weights meanwhile; no number is copied."""
        trained = self._trained()
        present = {name: parameter.data for name, parameter in trained.items()}
        try:
            for name, parameter in trained.items():
                parameter.data = weights[name]
            yield
        finally:
            for name, parameter in trained.items():
                parameter.data = present[name]

    def remember(self) -> None:
        """Keep the current weights: they are about to change."""
        if not self._options.past:
            return
        full = len(self._past) == self._options.past
        room = self._past.pop() if full else self._room()
        for name, parameter in self._trained().items():
            room[name].copy_(parameter.detach())
        self._past.insert(0, room)

    def carried_on(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The released gradients with what is carried on of those before (eq. 14)."""
        carried = self._options.carried
        if not carried:
            return list(gradients)
        if self._outer is None:
            self._outer = [gradient.clone() for gradient in gradients]
        else:
            for momentum, gradient in zip(self._outer, gradients, strict=True):
                momentum.mul_(carried).add_(gradient)
        return [momentum.clone() for momentum in self._outer]  # optimizers may write to theirs

    def state_dict(self) -> dict[str, Any]:
        """A copy, as plain data and tensors."""
        return {
            "past": [{name: t.clone() for name, t in weights.items()} for weights in self._past],
            "outer": None if self._outer is None else [t.clone() for t in self._outer],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        if len(state["past"]) > self._options.past:
            raise ValueError(f"{len(state['past'])} past weights, not up to {self._options.past}")
        rooms = [self._room() for _ in state["past"]]
        for room, weights in zip(rooms, state["past"], strict=True):
            if set(room) != set(weights):
                raise ValueError("past weights of other parameters")
            if not all(bool(torch.isfinite(values).all()) for values in weights.values()):
                raise ValueError("past weights that are not finite")
            for name, values in weights.items():
                room[name].copy_(values)
        outer = state["outer"]
        if outer is not None:
            shapes = [parameter.shape for parameter in self._trained().values()]
            if [values.shape for values in outer] != shapes:
                raise ValueError("outer momentum of other parameters")
            outer = [values.clone() for values in outer]
        self._past, self._outer = rooms, outer

    def _room(self) -> dict[str, Tensor]:
        return {n: torch.empty_like(p, requires_grad=False) for n, p in self._trained().items()}
