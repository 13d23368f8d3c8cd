"""Groupings by single layers or parameters."""

from dataclasses import dataclass

from torch import nn

from quietgrad.grouping.contract import Grouping, Partition
from quietgrad.grouping.kinds import kind_of
from quietgrad.grouping.parameters import by_layer, trainable

_ROOT = "(model)"


@dataclass(frozen=True, kw_only=True)
class AllLayer(Grouping):
    """One group with every parameter: flat clipping (Abadi et al. 2016), M = 1."""

    def partition(self, model: nn.Module) -> Partition:
        """All parameters in "all"."""
        return {"all": trainable(model)}


@dataclass(frozen=True, kw_only=True)
class LayerWise(Grouping):
    """One group per module that owns parameters, so weight and bias are clipped together.

    The originals of a parametrized weight belong to the module that is parametrized.
    """

    def partition(self, model: nn.Module) -> Partition:
        """Path of each layer -> its parameters."""
        return {path or _ROOT: names for path, names in by_layer(model).items()}


@dataclass(frozen=True, kw_only=True)
class ParamWise(Grouping):
    """One group per parameter."""

    def partition(self, model: nn.Module) -> Partition:
        """Each parameter under its own name."""
        return {name: (name,) for name in trainable(model)}


@dataclass(frozen=True, kw_only=True)
class TypeWise(Grouping):
    """One group per kind of layer (McMahan et al. 2018).

    The kinds are linear, conv, norm, embedding, recurrent, attention and other; those a model lacks
    make no group. A parameter's kind is that of the module that owns it.
    """

    def partition(self, model: nn.Module) -> Partition:
        """Kind of layer -> the parameters of all such layers."""
        kinds: dict[str, list[str]] = {}
        for path, names in by_layer(model).items():
            kinds.setdefault(kind_of(model.get_submodule(path)), []).extend(names)
        return kinds
