"""What the optimizer holds must be what the engine clips and adds noise to."""

from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer

from quietgrad.errors import StrayGradientError, TrainableSetError


def require_same_parameters(trained: Mapping[str, nn.Parameter], optimizer: Optimizer) -> None:
    """Refuse an optimizer that would apply a gradient that is not the engine's.

    Args:
        trained: the model's trainable parameters by name.
        optimizer: the one that takes the step.
    """
    by_id = {id(parameter): name for name, parameter in trained.items()}
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    foreign = [p for key, p in held.items() if p.requires_grad and key not in by_id]
    if foreign:
        raise TrainableSetError(
            f"the optimizer holds a trainable parameter of shape {tuple(foreign[0].shape)} "
            "that is not in the model: its gradient would be applied without noise. Register "
            "it in the model, or take it out of the optimizer."
        )
    stray = [p for key, p in held.items() if key not in by_id and p.grad is not None]
    if stray:
        raise StrayGradientError(
            f"the optimizer holds a frozen parameter of shape {tuple(stray[0].shape)} with a "
            ".grad that did not come from the engine: its step would apply it without noise. "
            "Call optimizer.zero_grad() first."
        )
    idle = [name for key, name in by_id.items() if key not in held]
    if idle:
        raise TrainableSetError(
            f"parameter '{idle[0]}' is trainable but not in the optimizer ({len(idle)} such): "
            "its gradient would take part in clipping for nothing. Freeze it with "
            "requires_grad_(False), or give it to the optimizer."
        )
