"""Standardized weights and features: what is learnt keeps its size, whatever the noise adds to it.

Weight standardization is that of Qiao, Wang, Liu, Shen and Yuille (2019), as Xiao, Xiang, Wang and
Devadas (IEEE S&P 2023) use it against the bias of clipping.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

_EPSILON = 1e-6


def standardized(features: Tensor) -> Tensor:
    """Each row of the last dimension with mean zero and deviation one."""
    centred = features - features.mean(-1, keepdim=True)
    # As `std` has it, which takes seven times as long on processors.
    length: Tensor = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
    return centred / (length / math.sqrt(features.shape[-1] - 1) + _EPSILON)


class Standardize(nn.Module):
    """`standardized` as a layer: every sample by itself, nothing to train."""

    def forward(self, features: Tensor) -> Tensor:
        """Features ``[..., F]``, of the same shape."""
        return standardized(features)


class WeightStandardization(nn.Module):
    """A convolution's weight, filter by filter: (w - mean) / (std + 1e-6) / sqrt(fan_in).

    A parametrization for `torch.nn.utils.parametrize`. `standardize_weights` registers it on all
    convolutions.
    """

    def forward(self, weight: Tensor) -> Tensor:
        """A weight ``[filters, ...]``, of the same shape."""
        filters = standardized(weight.flatten(1))
        return (filters / math.sqrt(filters.shape[1])).view_as(weight)


def standardize_weights(model: nn.Module) -> tuple[str, ...]:
    """Standardize the filters of all convolutions of a model, in place.

    The parameters stay what they are, under another name (``conv.parametrizations.weight.original``
    for ``conv.weight``); the convolution is given their standardized values. What is standardized
    already stays so. Initialize the weights before.

    Args:
        model: with at least one convolution.

    Returns:
        The paths of the convolutions.
    """
    found = {path: m for path, m in model.named_modules() if isinstance(m, _ConvNd)}
    if not found:
        raise ValueError(f"{type(model).__name__} has no convolution whose weight to standardize")
    for path, module in found.items():
        _require_filters(path, module)
    for module in found.values():
        if not _is_standardized(module):
            parametrize.register_parametrization(module, "weight", WeightStandardization())
    return tuple(found)


def _is_standardized(module: _ConvNd) -> bool:
    if not parametrize.is_parametrized(module, "weight"):
        return False
    applied = module.get_submodule("parametrizations.weight").children()
    return any(isinstance(one, WeightStandardization) for one in applied)


def _require_filters(path: str, module: _ConvNd) -> None:
    """Complain, by name, about a convolution whose filters cannot be standardized."""
    named = f"{type(module).__name__} '{path}'"
    if isinstance(module, _ConvTransposeNd):
        raise ValueError(
            f"{named} is a transposed convolution, whose filters lie along another dimension: "
            "expected Conv1d, Conv2d or Conv3d. Register WeightStandardization on the others "
            "yourself, by torch.nn.utils.parametrize"
        )
    if is_lazy(module.weight):
        raise ValueError(f"{named} does not know its channels yet: run a batch through it first")
    if module.weight[0].numel() < 2:
        raise ValueError(
            f"{named} has filters of one number each, which have no deviation to divide by: "
            "register WeightStandardization on the others yourself, by torch.nn.utils.parametrize"
        )
