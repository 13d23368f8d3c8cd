"""Which parameters a model trains, and which module each belongs to."""

from torch import nn
from torch.nn.utils import parametrize


def trainable(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters to train; a tied weight counts once, under its first name."""
    names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameter: set requires_grad where needed"
        )
    return names


def owner_path(model: nn.Module, parameter: str) -> str:
    """Path of the layer that owns a parameter ("" is the model itself).

    That is the module right above it, except that `torch.nn.utils.parametrize` moves a parameter
    into submodules of its layer, and that ParameterList and ParameterDict are only shelves in one.
    """
    path = parameter.rpartition(".")[0]
    prefix = ""
    for step in path.split("."):
        if step == "parametrizations" and parametrize.is_parametrized(model.get_submodule(prefix)):
            return prefix
        prefix = f"{prefix}.{step}" if prefix else step
    while path and isinstance(model.get_submodule(path), nn.ParameterList | nn.ParameterDict):
        path = path.rpartition(".")[0]
    return path


def by_layer(model: nn.Module) -> dict[str, list[str]]:
    """Path of each layer that owns trainable parameters -> their names, in order."""
    layers: dict[str, list[str]] = {}
    for name in trainable(model):
        layers.setdefault(owner_path(model, name), []).append(name)
    return layers
