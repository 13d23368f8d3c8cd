"""Linear layers, the workhorse: weight ``[P, D]``, bias ``[P]``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Uses
from quietgrad.capture.layout import Rows
from quietgrad.capture.registry import Call, rule
from quietgrad.factors import Dense, Factor, Outer


@rule(F.linear)
def linear(
    call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None, *, label: str = ""
) -> Tensor:
    """``input @ weight.T + bias``."""
    if call.is_managed(input):
        with call.recapture():
            output = torch.matmul(input, weight.mT)
            return output if bias is None else output + bias
    output = F.linear(input, call.value(weight), call.value(bias))
    saved = [as_computed(input, output)] if call.is_managed(weight) else []
    uses: Uses = [(weight, weight_factor), (bias, bias_factor)]
    return call.watch(output, uses, saved=saved, dims=output.ndim - 1, label=label)


@rule(torch.addmm, Tensor.addmm)
def addmm(
    call: Call, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """``beta * input + alpha * mat1 @ mat2``: a linear layer when mat2 is the weight ``[D, P]``."""
    if call.is_managed(mat1) or beta != 1 or alpha != 1 or input.ndim != 1:
        with call.recapture():
            return beta * input + alpha * torch.mm(mat1, mat2)
    output = torch.addmm(call.value(input), mat1, call.value(mat2))
    saved = [as_computed(mat1, output)] if call.is_managed(mat2) else []
    uses: Uses = [(mat2, _transposed_weight_factor), (input, bias_factor)]
    return call.watch(output, uses, saved=saved, dims=1)


def as_computed(tensor: Tensor, output: Tensor) -> Tensor:
    """``tensor`` in the type the operation computed in (autocast), as its gradient would see it."""
    return tensor if tensor.dtype == output.dtype else tensor.to(output.dtype)


def bias_factor(rows: Rows, grad: Tensor, *_: Tensor) -> Factor:
    """The gradient of something added along the last dimension."""
    positions = rows.split(grad, 1)
    if positions.shape[1] == 1:
        return Dense(positions.squeeze(1))
    return Dense(positions.sum(1, dtype=_sum_type(grad)))


def weight_factor(rows: Rows, grad: Tensor, input: Tensor) -> Factor:
    """The gradient of ``weight`` in ``input @ weight.T``."""
    return Outer(rows.split(grad, 1), rows.split(input, 1))


def _transposed_weight_factor(rows: Rows, grad: Tensor, input: Tensor) -> Factor:
    return Outer(rows.split(input, 1), rows.split(grad, 1))


def _sum_type(grad: Tensor) -> torch.dtype:
    return torch.float64 if grad.dtype == torch.float64 else torch.float32
