"""What a TorchFunctionMode does not see: custom autograd functions, and functions torch compiled.

While the forward of an attached model runs, calls of ``torch.autograd.Function.apply`` and of
functions by ``torch.jit.script`` or ``trace`` are looked at, and what ``torch.compile`` made runs
as it was written. Outside of it torch is as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd.function import _SingleLevelFunction

_Base: Any = _SingleLevelFunction  # all custom functions have it between them and torch's apply
_Scripted: Any = torch.jit.ScriptFunction
_call_scripted = _Scripted.__call__


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


@dataclass(frozen=True)
class ScriptedFunction:
    """A function that torch.jit compiled, as an operation."""

    function: Any

    @property
    def __name__(self) -> str:
        return f"torch.jit function '{self.function.name}'"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As torch does it."""
        return _call_scripted(self.function, *args, **kwargs)


HiddenFunction = AppliedFunction | ScriptedFunction
Handle = Callable[[HiddenFunction, tuple[Any, ...], dict[str, Any]], Any]
"""Runs a hidden function on arguments."""


class Interception:
    """Switched on in the outermost forward, off when it ends.

    Args:
        find: gives what handles hidden functions at this moment; None if nothing does.
    """

    def __init__(self, find: Callable[[], Handle | None]) -> None:
        self._find = find
        self._own: Any = None
        self._stance: Any = None

    def start(self) -> None:
        """Look at hidden functions from here on."""
        find = self._find

        def run(function: HiddenFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            handle = find()
            return function(*args, **kwargs) if handle is None else handle(function, args, kwargs)

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return run(AppliedFunction(cls), args, kwargs)

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            return run(ScriptedFunction(function), args, kwargs)

        self._own = classmethod(apply)
        _Base.apply, _Scripted.__call__ = self._own, call
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and not torch.compiler.is_compiling():
            self._stance = dynamo.set_stance("force_eager")

    def stop(self) -> None:
        """Leave torch as it was."""
        if self._own is not None and vars(_Base).get("apply") is self._own:
            del _Base.apply
            _Scripted.__call__ = _call_scripted
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
        self._own = self._stance = None


# -- torch.vmap ----------------------------------------------------------------------------------


def find_vmap(batch: int) -> int | None:
    """The level of a vmap over ``batch`` entries, if that is the outermost transformation."""
    transforms = torch._C._functorch.get_interpreter_stack()
    if not transforms or transforms[0].key() != torch._C._functorch.TransformType.Vmap:
        return None
    vmap = torch._C._functorch.CVmapInterpreterPtr(transforms[0])
    return vmap.level() if vmap.batchSize() == batch else None


def unwrap(tensor: Tensor) -> Tensor:
    """The tensor that transformations were given, from what they make of it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


@contextmanager
def leave_transforms() -> Iterator[None]:
    """In it torch runs as outside of all transformations."""
    with ExitStack() as left:
        while torch._C._are_functorch_transforms_active():
            left.enter_context(temporarily_pop_interpreter_stack())
        yield


def add_samples(tensor: Tensor, level: int) -> Tensor:
    """A tensor ``[B, ...]`` as a vmap sees it: the first dimension is hidden."""
    hidden: Tensor = torch._C._functorch._add_batch_dim(tensor, 0, level)
    return hidden
