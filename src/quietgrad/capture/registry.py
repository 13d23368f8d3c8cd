"""The table of rules: how each torch operation on a parameter and data is captured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor

from quietgrad.capture.call import Call

Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)
TorchFunction = Callable[..., Any]

_RULES: dict[TorchFunction, Rule] = {}


def rule(*functions: TorchFunction) -> Callable[[RuleT], RuleT]:
    """Register a rule: called as ``rule(call, *args, **kwargs)`` in place of the operation."""

    def register(function: RuleT) -> RuleT:
        for operation in functions:
            _RULES[operation] = function
        return function

    return register


def find_rule(function: TorchFunction) -> Rule | None:
    """The rule for a torch operation, if there is one."""
    return _RULES.get(function)


def variants(names: Iterable[str]) -> list[TorchFunction]:
    """All spellings of operations: torch.f, Tensor.f, f_, __f__, __rf__, __if__."""
    found = []
    for name in names:
        spellings = (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
        for holder in (torch, Tensor):
            found += [getattr(holder, s) for s in spellings if callable(getattr(holder, s, None))]
    return found


__all__ = ["Call", "find_rule", "rule", "variants"]
