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

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Kind(ABC):
    """One kind of recurrent layer: what it does in a step, and the derivative of that.

    Tensors of one step have the samples first. Results are written where they are to stay, for
    there are many steps.

    Attributes:
        gates: how many times as wide as the hidden state its projections are.
        kept: how many times as wide is what the backward needs of a step.
    """

    gates: int
    kept: int

    @abstractmethod
    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        """Write the state after a step, and what its derivative needs.

        Args:
            projected: the projected input.
            recurrent: the projected hidden state; may be overwritten.
            before: the state before.
            after: where to write the one after.
            keep: where to write what the backward needs.
        """

    @abstractmethod
    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        """From the gradients of the state after a step to those of the state before it.

        Args:
            keep: what the forward kept.
            before: the state before.
            grads: of the state after.
            projected: where to write the gradient of the projected input.
            recurrent: where to write that of the projected hidden state.

        Returns:
            The part that does not pass through the recurrent weights; for the hidden state it may
            be a scalar zero.
        """


class Plain(Kind):
    """nn.RNN, with tanh or relu."""

    gates = kept = 1

    def __init__(
        self,
        activate: Callable[[Tensor], Tensor],
        derive: Callable[[Tensor, Tensor, Tensor], object],
    ) -> None:
        self._activate, self._derive = activate, derive

    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        keep.copy_(self._activate(recurrent.add_(projected)))
        after[0].copy_(keep)

    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        self._derive(grads[0], keep, projected)
        recurrent.copy_(projected)
        return (grads[0].new_zeros(()),)


class Gru(Kind):
    """nn.GRU: reset gate, update gate, candidate; of the recurrent part the last third is kept."""

    gates, kept = 3, 4

    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        width = before[0].shape[1]
        reset, update, candidate, share = keep.split(width, 1)
        gates = keep[:, : 2 * width]
        torch.add(projected[:, : 2 * width], recurrent[:, : 2 * width], out=gates).sigmoid_()
        share.copy_(recurrent[:, 2 * width :])
        torch.addcmul(projected[:, 2 * width :], reset, share, out=candidate).tanh_()
        torch.lerp(candidate, before[0], update, out=after[0])

    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        (grad,) = grads
        width = grad.shape[1]
        reset, update, candidate, share = keep.split(width, 1)
        by_reset, by_update, by_candidate = projected.split(width, 1)
        kept = grad * update
        _sigmoid_backward((before[0] - candidate).mul_(grad), update, grad_input=by_update)
        _tanh_backward(grad - kept, candidate, grad_input=by_candidate)
        _sigmoid_backward(by_candidate * share, reset, grad_input=by_reset)
        recurrent[:, : 2 * width].copy_(projected[:, : 2 * width])
        torch.mul(by_candidate, reset, out=recurrent[:, 2 * width :])
        return (kept,)


class Lstm(Kind):
    """nn.LSTM: input gate, forget gate, candidate, output gate; and the cell as it is shown."""

    gates, kept = 4, 5

    def forward(
        self, projected: Tensor, recurrent: Tensor, before: State, after: State, keep: Tensor
    ) -> None:
        width = before[0].shape[1]
        torch.add(projected, recurrent, out=keep[:, : 4 * width])
        enter, forget, candidate, leave, shown = keep.split(width, 1)
        keep[:, : 2 * width].sigmoid_()
        candidate.tanh_()
        leave.sigmoid_()
        torch.mul(forget, before[1], out=after[1]).addcmul_(enter, candidate)
        torch.tanh(after[1], out=shown)
        torch.mul(leave, shown, out=after[0])

    def backward(
        self, keep: Tensor, before: State, grads: State, projected: Tensor, recurrent: Tensor
    ) -> State:
        hidden, cell = grads
        width = hidden.shape[1]
        enter, forget, candidate, leave, shown = keep.split(width, 1)
        by_enter, by_forget, by_candidate, by_leave = projected.split(width, 1)
        cell = torch.ops.aten.tanh_backward(hidden * leave, shown).add_(cell)
        _sigmoid_backward(hidden * shown, leave, grad_input=by_leave)
        _sigmoid_backward(cell * candidate, enter, grad_input=by_enter)
        _sigmoid_backward(cell * before[1], forget, grad_input=by_forget)
        _tanh_backward(cell * enter, candidate, grad_input=by_candidate)
        recurrent.copy_(projected)
        return hidden.new_zeros(()), cell * forget


def _derive_tanh(grad: Tensor, output: Tensor, out: Tensor) -> None:
    _tanh_backward(grad, output, grad_input=out)


def _derive_relu(grad: Tensor, output: Tensor, out: Tensor) -> None:
    torch.mul(grad, output > 0, out=out)


TANH, RELU = Plain(torch.tanh_, _derive_tanh), Plain(torch.relu_, _derive_relu)
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
        steps, batch = projected.shape[:2]
        width = weight.shape[1]
        keep = projected.new_empty(steps, batch, kind.kept * width)
        states = tuple(projected.new_empty(steps + 1, batch, width) for _ in state)
        for room, initial in zip(states, state, strict=True):
            room[0].copy_(initial)
        added = projected.new_zeros(()) if bias is None else bias
        recurrent, transposed = projected.new_empty(batch, len(weight)), weight.t()
        for step in range(steps):
            torch.addmm(added, states[0][step], transposed, out=recurrent)
            before, after = (tuple(s[i] for s in states) for i in (step, step + 1))
            kind.forward(projected[step], recurrent, before, after, keep[step])
        ctx.kind, ctx.site = kind, site
        ctx.save_for_backward(weight, keep, *states)
        ctx.set_materialize_grads(False)
        hidden, *cells = states
        return hidden[1:].clone(), *(cell[-1].clone() for cell in cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        kind: Kind = ctx.kind
        weight, keep, *states = ctx.saved_tensors
        inputs = (states[0][:-1],)
        if all(grad is None for grad in grads):
            if ctx.site is not None:
                ctx.site.receive(None, inputs)
            return (None,) * (6 + len(states))
        steps, batch = keep.shape[:2]
        none = torch.zeros_like(states[0][0])
        later = [none, *(none if grad is None else grad for grad in grads[1:])]
        projected = keep.new_empty(steps, batch, len(weight))
        recurrent = torch.empty_like(projected)
        for step in reversed(range(steps)):
            arriving = later[0] if grads[0] is None else later[0] + grads[0][step]
            before = tuple(state[step] for state in states)
            rest = kind.backward(
                keep[step], before, (arriving, *later[1:]), projected[step], recurrent[step]
            )
            later = [torch.addmm(rest[0], recurrent[step], weight), *rest[1:]]
        if ctx.site is not None:
            ctx.site.receive(recurrent, inputs)
        return (None, projected, None, None, None, None, *later)
