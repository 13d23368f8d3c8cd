"""Copies of a model to run: each as if nothing had ever been run on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.capture.attributes import plain_attributes

Held = dict[str, Any]
"""What a model holds besides its parameters, by a path: tensors and plain values."""


class Copies:
    """Gives copies of a model. Copying a large one takes time, so one that is clean comes again.

    Args:
        original: never run, and never changed.
        prepare: done to each copy.
    """

    def __init__(self, original: nn.Module, prepare: Callable[[nn.Module], None]) -> None:
        self._original, self._prepare = original, prepare
        self._last = self._copied()
        self._clean = held_by(self._last)

    def fresh(self) -> nn.Module:
        """A copy that is as the original is. The one given before must not be used any more."""
        if not same(held_by(self._last), self._clean):
            self._last = self._copied()
        self._last.zero_grad()
        return self._last

    def _copied(self) -> nn.Module:
        model = copied(self._original)
        self._prepare(model)
        return model


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, also of a model that holds results of an earlier run."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(model, memo)


def held_by(model: nn.Module) -> Held:
    """Everything that a run can change besides parameters."""
    found: Held = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    for name, leaf in plain_attributes(model):
        found[name] = leaf.detach().clone() if isinstance(leaf, Tensor) else leaf
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two held values are equal, NaN and all."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other or one != one)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
