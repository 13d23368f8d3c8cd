"""Putting other modules in the places of those a model has."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad.nn.changes import Change

Replace = Callable[[str, nn.Module], nn.Module | None]
"""What shall be in the place of a module of this path; None if it stays."""


def replaced(model: nn.Module, replace: Replace) -> tuple[nn.Module, list[Change]]:
    """The model with some of its modules replaced, in place, and what was replaced.

    A module that is used in several places is replaced by one, too.
    """
    changes: list[Change] = []
    instead: dict[nn.Module, nn.Module] = {}
    for path, module in model.named_modules():
        new = replace(path, module)
        if new is not None:
            instead[module] = new.train(module.training)
            changes.append(Change(path, described(module), described(new)))
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children leaves out second names
            if child in instead:
                parent._modules[name] = instead[child]
    return instead.get(model, model), changes


def described(module: nn.Module) -> str:
    """What kind of layer it is, in short."""
    if isinstance(module, _BatchNorm):
        return f"{type(module).__name__}({module.num_features} channels)"
    if isinstance(module, nn.GroupNorm):
        groups = f"{module.num_groups} group{'s' if module.num_groups > 1 else ''}"
        return f"GroupNorm({groups}, {module.num_channels} channels)"
    return repr(module)


def has_hooks(module: nn.Module) -> bool:
    """Whether something else runs when the module does, which a replacement would not know."""
    return any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    )
