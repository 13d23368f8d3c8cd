"""The three autograd functions that stand between the graph and the parameters.

Each takes a token, a scalar that requires gradients, so that backward reaches it even where
nothing else does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from quietgrad.capture.tape import Site, Tape


def tap_output(output: Tensor, token: Tensor, site: Site, saved: Sequence[Tensor]) -> Tensor:
    """``output`` itself; when its gradient arrives, ``site`` receives it with what was saved."""
    tapped: Tensor = _TapOutput.apply(output, token, site, *saved)  # type: ignore[no-untyped-call]
    return tapped


def tap_source(values: Tensor, token: Tensor, site: Site, shape: torch.Size) -> Tensor:
    """``values`` broadcast to ``shape``; their gradient goes to ``site`` and ends there."""
    tapped: Tensor = _TapSource.apply(values, token, site, shape)  # type: ignore[no-untyped-call]
    return tapped


def entry(values: Tensor, token: Tensor, tape: Tape, name: str) -> Tensor:
    """``values`` as the start of a computation on parameters alone."""
    start: Tensor = _Entry.apply(values, token, tape, name)  # type: ignore[no-untyped-call]
    return start


class _TapOutput(torch.autograd.Function):
    """Identity on an operation's output; its backward hands the gradient to the tape.

    The output is marked dirty instead of copied, so that in-place activations behind it stay
    legal. What the site needs is saved through autograd, so that activation checkpointing can drop
    and recompute it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, token: Tensor, site: Site, *saved: Tensor) -> Tensor:
        ctx.site = site
        ctx.save_for_backward(*saved)
        ctx.mark_dirty(output)
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        ctx.site.receive(grad, saved)
        return (grad, None, None, *[None] * len(saved))


class _TapSource(torch.autograd.Function):
    """A parameter's values, broadcast to the shape of their use; the gradient ends at the tape."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, site: Site, shape: torch.Size) -> Tensor:
        ctx.site = site
        ctx.set_materialize_grads(False)
        return values.expand(shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, None, None, None]:
        ctx.site.receive(grad, ())
        return None, None, None, None


class _Entry(torch.autograd.Function):
    """Where a computation on parameters alone begins; ordinary backward must never get here."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, tape: Tape, name: str) -> Tensor:
        ctx.tape, ctx.parameter = tape, name
        ctx.set_materialize_grads(False)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[None, None, None, None]:
        if grad is not None:
            ctx.tape.refuse_escape(ctx.parameter)
        return None, None, None, None
