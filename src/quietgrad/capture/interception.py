"""What a TorchFunctionMode does not see: custom autograd functions, and functions torch compiled.

While the forward of an attached model runs, ``torch.autograd.Function.apply`` is looked at, and
what ``torch.compile`` made runs as it was written. Outside of it torch is as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

_Base: Any = _SingleLevelFunction  # all custom functions have it between them and torch's apply


@dataclass(frozen=True)
class AppliedFunction:
    """``apply`` of a custom autograd function, as an operation."""

    kind: Any

    @property
    def __name__(self) -> str:
        return f"{self.kind.__name__}.apply"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As torch does it."""
        torchs_own: Any = super(_Base, self.kind)
        return torchs_own.apply(*args, **kwargs)


Handle = Callable[[AppliedFunction, tuple[Any, ...], dict[str, Any]], Any]
"""Runs a custom function on arguments."""


class Interception:
    """Switched on in the outermost forward, off when it ends.

    Args:
        find: gives what handles custom functions at this moment; None if nothing does.
    """

    def __init__(self, find: Callable[[], Handle | None]) -> None:
        self._find = find
        self._own: Any = None
        self._stance: Any = None

    def start(self) -> None:
        """Look at custom functions from here on."""
        find = self._find

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            handle, function = find(), AppliedFunction(cls)
            return function(*args, **kwargs) if handle is None else handle(function, args, kwargs)

        self._own = classmethod(apply)
        _Base.apply = self._own
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and not torch.compiler.is_compiling():
            self._stance = dynamo.set_stance("force_eager")

    def stop(self) -> None:
        """Leave torch as it was."""
        if self._own is not None and vars(_Base).get("apply") is self._own:
            del _Base.apply
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
        self._own = self._stance = None
