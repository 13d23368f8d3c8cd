"""D: the forward keeps samples apart, and the backward pass does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .data import Net, program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("D")


class ScaledByMean(torch.autograd.Function):
    """Identity; the gradient is scaled by the batch's mean."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.save_for_backward(h.mean(0))
        return h.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (mean,) = ctx.saved_tensors
        return 5 * grad * mean


@TRAPS.add()
def a_gradient_scaled_by_the_batch_mean(rows: Rows) -> Program:
    return program(Net(lambda net, h: ScaledByMean.apply(h)), rows)


class SignOfMean(torch.autograd.Function):
    """Binarizes each sample, and lets gradients through by the sign of the batch's mean."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.sign = h.mean(0).sign()
        return torch.where(h > 0, 1.0, -1.0).to(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 5 * grad * ctx.sign


@TRAPS.add(steps=10, every=True)  # the sign changes with some of the samples only
def a_straight_through_gradient_with_the_sign_of_the_batch_mean(rows: Rows) -> Program:
    return program(Net(lambda net, h: SignOfMean.apply(h)), rows)


class Quantize(torch.autograd.Function):
    """Rounds; the gradient is scaled by the number of entries, as learned step sizes are."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.scale = 1 / h.numel() ** 0.5
        return torch.round(h * 64) / 64

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * ctx.scale


def opposed(count: int = 9) -> list[tuple[Tensor]]:
    """All alike but the first."""
    x = torch.ones(count, 3, dtype=torch.float64)
    x[0] = -1
    return [(sample,) for sample in x]


def added(model: torch.nn.Module, batch: Any) -> Tensor:
    """The outputs are added up: their gradient is the same for all samples."""
    return model(*batch).sum(1)


@TRAPS.add(count=9)
def a_gradient_divided_by_the_root_of_the_number_of_entries(rows: Rows) -> Program:
    options = {"clipping": "abadi", "radius": 0.3}
    model = Net(lambda net, h: Quantize.apply(h))
    for parameter in (model.first.bias, *model.last.parameters()):
        parameter.requires_grad_(False)
    return program(model, rows, opposed(), losses=added, options=options)


class Active(torch.autograd.Function):
    """A rectifier whose gradient is shared among the samples that are active."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        active = h > 0
        ctx.save_for_backward(active, active.sum(0))
        return h * active

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        active, count = ctx.saved_tensors
        return grad * active * (2.0 - count) * 5


@TRAPS.add()
def a_gradient_shared_among_the_active(rows: Rows) -> Program:
    return program(Net(lambda net, h: Active.apply(h)), rows, [(x,) for x in samples(seed=3)])


class Reverse(torch.autograd.Function):
    """Gradient reversal, as strong as the share of positive entries says."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grad, None


@TRAPS.add()
def gradient_reversal_by_a_number_of_the_batch(rows: Rows) -> Program:
    return program(
        Net(lambda net, h: Reverse.apply(h, 10 * float(h.detach().mean(0).min() + 1))), rows
    )


# -- hooks ---------------------------------------------------------------------------------------


def hooked(net: Net, h: Tensor) -> Tensor:
    """A hook on an activation that closes over what it needs of the batch."""
    if h.requires_grad:
        mean = h.detach().mean(0)
        h.register_hook(lambda grad: 5 * grad * mean.sign())
    return torch.tanh(h / 10)


@TRAPS.add()
def a_hook_on_an_activation(rows: Rows) -> Program:
    return program(Net(hooked), rows)


def tanh_layer() -> Net:
    model = Net(lambda net, h: net.act(h / 10))
    model.act = torch.nn.Tanh()
    return model


@TRAPS.add()
def a_full_backward_hook_that_counts(rows: Rows) -> Program:
    """The gradient is turned around for an odd number of rows."""

    def hook(module: Any, grad_input: Any, grad_output: Any) -> Any:
        return tuple(None if g is None else g * 200.0 * (-1) ** len(g) for g in grad_input)

    model = tanh_layer()
    model.act.register_full_backward_hook(hook)
    return program(model, rows)


@TRAPS.add()
def a_full_backward_hook_with_what_the_forward_saw(rows: Rows) -> Program:
    seen: dict[str, Tensor] = {}

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        seen["mean"] = output.detach().mean(0)

    def hook(module: Any, grad_input: Any, grad_output: Any) -> Any:
        return tuple(None if g is None else 100 * g * seen["mean"].sign() for g in grad_input)

    model = tanh_layer()
    model.act.register_forward_hook(keep)
    model.act.register_full_backward_hook(hook)
    return program(model, rows)


@TRAPS.add()
def a_hook_before_the_backward_of_a_layer(rows: Rows) -> Program:
    cell: list[Tensor] = []

    def keep(module: Any, inputs: Any) -> None:
        cell[:] = [inputs[0].detach().mean(0)]

    def hook(module: Any, grad_output: Any) -> Any:
        return tuple(100 * g * cell[0].sign() for g in grad_output)

    model = tanh_layer()
    model.act.register_forward_pre_hook(keep)
    model.act.register_full_backward_pre_hook(hook)
    return program(model, rows)
