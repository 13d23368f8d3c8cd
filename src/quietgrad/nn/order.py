"""Normalization after the activation instead of before it, where a Sequential fixes the order."""

from __future__ import annotations

from itertools import pairwise

from torch import nn
from torch.nn.modules.conv import _ConvNd

from quietgrad.nn.changes import Change
from quietgrad.nn.replacement import described

_RECTIFIERS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU),
    *(nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Softplus),
)
_ELSEWHERE = "its place is fixed by the code that calls it, not by a Sequential"
_ALONE = "it does not stand between a convolution or linear layer and an activation"


def is_rectifier(module: nn.Module) -> bool:
    """Whether it is an activation of the kind of ReLU: no gate, no squashing, no parameters."""
    return type(module) in _RECTIFIERS


def activations_first(model: nn.Module) -> list[Change]:
    """Swap each normalization with the activation behind it, in place; tell of those left."""
    changes: list[Change] = []
    settled: set[nn.Module] = set()  # moved, or in the right place
    seen: set[nn.Module] = set()
    for path, module in model.named_modules():
        if _runs_in_order(module):
            assert isinstance(module, nn.Sequential)
            settled |= _behind_activations(module)
            changes += _swaps(path, module, settled)
            seen |= set(module)
    for path, module in model.named_modules():
        if isinstance(module, nn.GroupNorm) and module not in settled:
            what = described(module)
            changes.append(Change(path, what, what, _ALONE if module in seen else _ELSEWHERE))
    return changes


def _runs_in_order(module: nn.Module) -> bool:
    """Whether it is a Sequential without code of its own."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _behind_activations(sequence: nn.Sequential) -> set[nn.Module]:
    layers = list(sequence)
    return {
        norm
        for activation, norm in pairwise(layers)
        if isinstance(norm, nn.GroupNorm) and _is_activation(activation)
    }


def _swaps(path: str, sequence: nn.Sequential, settled: set[nn.Module]) -> list[Change]:
    names = list(sequence._modules)
    layers = list(sequence)
    changes: list[Change] = []
    for place in range(len(layers) - 2):
        before, norm, activation = layers[place : place + 3]
        if not (
            isinstance(before, _ConvNd | nn.Linear)
            and isinstance(norm, nn.GroupNorm)
            and _is_activation(activation)
        ):
            continue
        was = _in_words(norm, activation)
        layers[place + 1 : place + 3] = activation, norm
        if not all(name.isdigit() for name in names):  # numbers are places, other names are not
            names[place + 1 : place + 3] = reversed(names[place + 1 : place + 3])
        changes.append(Change(path, was, _in_words(activation, norm)))
        settled.add(norm)
    if changes:
        sequence._modules.clear()
        sequence._modules.update(zip(names, layers, strict=True))
    return changes


def _is_activation(module: nn.Module) -> bool:
    return is_rectifier(module) or isinstance(module, nn.Tanh | nn.Hardtanh | nn.PReLU)


def _in_words(*layers: nn.Module) -> str:
    return ", ".join(map(described, layers))
