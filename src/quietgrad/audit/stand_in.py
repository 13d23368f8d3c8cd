"""An element that stands in for what a canary lacks."""

from typing import Any

import torch
from torch import nn

from quietgrad.audit.training import Training
from quietgrad.sampling import population

_LOOKED_AT = 100


def stand_in(model: nn.Module, training: Training) -> Any:
    """The first element with a finite loss and gradient: multiplied by zero, both are zero.

    Otherwise they would be no number, and the engine would drop the canary from every sum.

    Raises:
        ValueError: there is none among the first hundred.
    """
    was_training = model.training
    model.eval()  # dropout must not move the global generator
    try:
        for position in range(min(_LOOKED_AT, population(training.dataset))):
            element = training.dataset[position]
            if _is_finite(model, training, element):
                return element
    finally:
        model.train(was_training)
    raise ValueError(
        f"the loss of each of the first {_LOOKED_AT} elements, or its gradient, is not finite, so "
        "none can stand in for canaries: expected data that the model can be trained on"
    )


def _is_finite(model: nn.Module, training: Training, element: Any) -> bool:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with torch.enable_grad():
        losses = training.losses(model, training.collate([element]))
        gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True)
    found = [losses, *(each for each in gradients if each is not None)]
    return all(bool(torch.isfinite(each).all()) for each in found)
