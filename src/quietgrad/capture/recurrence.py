"""A whole recurrent layer as one autograd function, with its own backward through time.

Autograd would record a dozen small nodes for every step, and the recurrent weights would be used
once for each. Here a step costs a few operations, the gradients of all steps' gates arrive at the
tape together, and the recurrent weights are used once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from quietgrad.capture.tape import Site

State = tuple[Tensor, ...]
"""The hidden state; for an LSTM followed by the cell."""


class Kind(ABC):
    """One kind of recurrent layer: what it does in a step, and the derivative of that.

    ``gates`` counts how many times the hidden size its projections are wide. All tensors have the
    steps first, then the samples.
    """

    gates: int

    @abstractmethod
    def forward(
        self, projected: Tensor, recur: Callable[[Tensor], Tensor], state: State
    ) -> tuple[State, Tensor]:
        """The next state, and what the backward needs of this step, side by side."""

    @abstractmethod
    def prepare(self, kept: Tensor, hidden: Tensor, cell: Tensor) -> State:
        """What the derivatives of all steps have in common, computed for all at once.

        Args:
            kept: what the forward kept of each step.
            hidden: the hidden states that the steps began with.
            cell: the cells that they began with, where there are any.
        """

    @abstractmethod
    def backward(
        self, prepared: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        """From the gradients of a step's state to those of what it began with.

        Args:
            prepared: of this step.
            grads: of the state after it.
            projected: where to write the gradient of the projected input.
            recurrent: where to write that of the projected hidden state.

        Returns:
            The part of the state before that does not pass through the recurrent weights; for the
            hidden state it may be a scalar zero.
        """


class Plain(Kind):
    """nn.RNN, with tanh or relu."""

    gates = 1

    def __init__(self, activation: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]):
        self._activation, self._slope = activation, slope

    def forward(
        self, projected: Tensor, recur: Callable[[Tensor], Tensor], state: State
    ) -> tuple[State, Tensor]:
        hidden = self._activation(projected + recur(state[0]))
        return (hidden,), hidden

    def prepare(self, kept: Tensor, hidden: Tensor, cell: Tensor) -> State:
        return (self._slope(kept),)

    def backward(
        self, prepared: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        torch.mul(grads[0], prepared[0], out=projected)
        recurrent.copy_(projected)
        return (grads[0].new_zeros(()),)


class Gru(Kind):
    """nn.GRU: reset gate, update gate, candidate."""

    gates = 3

    def forward(
        self, projected: Tensor, recur: Callable[[Tensor], Tensor], state: State
    ) -> tuple[State, Tensor]:
        (hidden,) = state
        width = hidden.shape[-1]
        recurrent = recur(hidden)
        both = (projected[:, : 2 * width] + recurrent[:, : 2 * width]).sigmoid_()
        reset, update = both.split(width, 1)
        share = recurrent[:, 2 * width :]
        candidate = torch.addcmul(projected[:, 2 * width :], reset, share).tanh_()
        after = torch.lerp(candidate, hidden, update)
        return (after,), torch.cat([both, candidate, share], 1)

    def prepare(self, kept: Tensor, hidden: Tensor, cell: Tensor) -> State:
        reset, update, candidate, share = kept.chunk(4, 2)
        by_update = (hidden - candidate).mul_(update * (1 - update))
        by_candidate = (1 - update) * (1 - candidate.square())
        by_reset = (1 - reset).mul_(reset).mul_(share)
        return torch.cat([by_candidate, by_update], 2), by_reset, reset, update

    def backward(
        self, prepared: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        (grad,) = grads
        both, by_reset, reset, update = prepared
        width = grad.shape[-1]
        candidate = projected[:, 2 * width :]
        torch.mul(grad, both[:, :width], out=candidate)
        torch.mul(grad, both[:, width:], out=projected[:, width : 2 * width])
        torch.mul(candidate, by_reset, out=projected[:, :width])
        recurrent[:, : 2 * width].copy_(projected[:, : 2 * width])
        torch.mul(candidate, reset, out=recurrent[:, 2 * width :])
        return (grad * update,)


class Lstm(Kind):
    """nn.LSTM: input gate, forget gate, candidate, output gate."""

    gates = 4

    def forward(
        self, projected: Tensor, recur: Callable[[Tensor], Tensor], state: State
    ) -> tuple[State, Tensor]:
        hidden, cell = state
        width = hidden.shape[-1]
        values = projected + recur(hidden)
        values[:, : 2 * width].sigmoid_()
        values[:, 2 * width : 3 * width].tanh_()
        values[:, 3 * width :].sigmoid_()
        enter, forget, candidate, leave = values.split(width, 1)
        after = torch.addcmul(forget * cell, enter, candidate)
        shown = after.tanh()
        return (leave * shown, after), torch.cat([values, shown], 1)

    def prepare(self, kept: Tensor, hidden: Tensor, cell: Tensor) -> State:
        enter, forget, candidate, leave, shown = kept.chunk(5, 2)
        by_cell = torch.cat(
            [
                candidate * enter * (1 - enter),
                cell * forget * (1 - forget),
                enter * (1 - candidate.square()),
            ],
            2,
        )
        return by_cell, leave * (1 - shown.square()), shown * leave * (1 - leave), forget

    def backward(
        self, prepared: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        by_cell, shown, by_leave, forget = prepared
        hidden, cell = grads
        width = hidden.shape[-1]
        cell = torch.addcmul(cell, hidden, shown)
        torch.mul(cell.repeat(1, 3), by_cell, out=projected[:, : 3 * width])
        torch.mul(hidden, by_leave, out=projected[:, 3 * width :])
        recurrent.copy_(projected)
        return hidden.new_zeros(()), cell * forget


TANH = Plain(torch.tanh, lambda y: 1 - y.square())
RELU = Plain(torch.relu, lambda y: (y > 0).to(y.dtype))
GRU, LSTM = Gru(), Lstm()


def recurrence(
    kind: Kind,
    projected: Tensor,
    state: State,
    weight: Tensor,
    bias: Tensor | None,
    token: Tensor,
    site: Site | None,
) -> tuple[Tensor, State]:
    """Run all steps of one direction of a layer.

    Args:
        kind: of layer.
        projected: the projected inputs, ``[T, B, gates * H]``.
        state: the state to begin with.
        weight: of the hidden state, cut off from autograd.
        bias: added to its projection, cut off from autograd.
        token: makes the backward get here.
        site: receives the gradient of the projected hidden states, with these.

    Returns:
        The hidden states after each step, ``[T, B, H]``, and the final state.
    """
    apply: Any = _Recurrence.apply
    hidden, *cell = apply(kind, projected, token, site, weight, bias, *state)
    return hidden, (hidden[-1], *cell)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kind: Kind,
        projected: Tensor,
        token: Tensor,
        site: Site | None,
        weight: Tensor,
        bias: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        transposed = weight.t()

        def recur(hidden: Tensor) -> Tensor:
            if bias is None:
                return hidden @ transposed
            return torch.addmm(bias, hidden, transposed)

        states, kept = [state], []
        for inputs in projected.unbind(0):
            after, keep = kind.forward(inputs, recur, states[-1])
            states.append(after)
            kept.append(keep)
        hidden, *cells = (torch.stack(column) for column in zip(*states, strict=True))
        ctx.kind, ctx.site = kind, site
        ctx.save_for_backward(weight, torch.stack(kept), hidden, *(cell[:-1] for cell in cells))
        ctx.set_materialize_grads(False)
        return hidden[1:].clone(), *(cell[-1].clone() for cell in cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, kept, hidden, *cells = ctx.saved_tensors
        before = hidden[:-1]
        if all(grad is None for grad in grads):
            if ctx.site is not None:
                ctx.site.receive(None, (before,))
            return (None,) * (6 + len(grads))
        kind: Kind = ctx.kind
        prepared = kind.prepare(kept, before, cells[0] if cells else before)
        arriving = before.new_zeros(before.shape) if grads[0] is None else grads[0]
        later = [torch.zeros_like(before[0]) if g is None else g for g in grads[1:]]
        later = [torch.zeros_like(before[0]), *later]
        shape = (*before.shape[:2], kind.gates * before.shape[2])
        projected, recurrent = before.new_empty(shape), before.new_empty(shape)
        steps = list(zip(*(part.unbind(0) for part in prepared), strict=True))
        for step in reversed(range(len(steps))):
            current = (arriving[step] + later[0], *later[1:])
            rest = kind.backward(steps[step], current, projected[step], recurrent[step])
            later = [torch.addmm(rest[0], recurrent[step], weight), *rest[1:]]
        if ctx.site is not None:
            ctx.site.receive(recurrent, (before,))
        return (None, projected, None, None, None, None, *later)
