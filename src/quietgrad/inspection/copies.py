"""Copies of a model to run: each as if nothing had ever been run on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.model_state import plain_attributes

Held = dict[str, Any]
"""What a model holds besides its parameters, by a path: tensors and plain values."""


class Copies:
    """Gives copies of a model. Parameters are most of it, and runs leave them alone: copied once.

    Args:
        original: never run, and never changed.
        prepare: done to each copy.
    """

    def __init__(self, original: nn.Module, prepare: Callable[[nn.Module], None]) -> None:
        self._original, self._prepare = original, prepare
        self._parameters: list[nn.Parameter] = []

    def fresh(self) -> nn.Module:
        """A copy that is as the original is. The one given before must not be used any more."""
        originals = list(self._original.parameters())
        if not all(map(_is_still, self._parameters, originals)):
            self._parameters = []  # a forward that writes parameters
        memo = {id(p): own for p, own in zip(originals, self._parameters, strict=False)}
        model = copied(self._original, memo)
        self._parameters = list(model.parameters())
        self._prepare(model)
        model.zero_grad()
        return model


def _is_still(own: nn.Parameter, original: nn.Parameter) -> bool:
    same_kind = own.requires_grad == original.requires_grad and own.shape == original.shape
    return same_kind and torch.equal(own, original)


def copied(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy, also of a model that holds results of an earlier run.

    Args:
        model: what to copy.
        memo: by its id, what is not to be copied, and what to take instead.

    Raises:
        ValueError: something in it cannot be copied.
    """
    for _, leaf in plain_attributes(model):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ValueError(
            f"the model cannot be copied, and checks are run on copies: {_culprit(model)} "
            f"({type(error).__name__}: {error}). Remove it, or build the model anew without it."
        ) from error


def _culprit(model: nn.Module) -> str:
    """The first attribute that cannot be copied."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                if name != "_modules":
                    copy.deepcopy(value)
            except Exception:
                kind = type(value).__name__
                return f"attribute '{path}.{name}' is a {kind}".replace("'.", "'")
    return f"a {type(model).__name__}"


def held_by(model: nn.Module) -> Held:
    """Everything that a run can change besides parameters."""
    found: Held = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    for name, leaf in plain_attributes(model):
        found[name] = leaf.detach().clone() if isinstance(leaf, Tensor) else copy.copy(leaf)
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two held values are equal, NaN and all."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other or one != one)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
