"""What ``torch.compile`` made must run as it was written while it is captured.

Compiled code does not go through the mode that capture is made of. So while samples are out, and
while a captured forward runs, torch's compiler has the stance "force_eager": the model, a part of
it, a function in it or the loss runs uncompiled, whatever was compiled and whenever. Whoever needs
this holds it; when the last one lets go, the stance is what it was before the first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from operator import is_
from threading import RLock
from types import FunctionType
from typing import Any
from weakref import WeakSet, finalize, ref

import torch
from torch import nn
from torch.nn.modules import module as _of_modules

from quietgrad.capture.attributes import walk_attributes
from quietgrad.errors import EngineStateError, UnsupportedOperationError

_CALLER = (
    "compiled code called the engine (or a function of quietgrad, or an attached model in training "
    "mode while no samples are out): a function that torch.compile made, into which torch would "
    "compile the engine's own work. Compile the model, the loss or a function of one micro-batch "
    "instead. Call the engine from code that is not compiled; in code that is, call a function "
    "that torch.compiler.disable(engine.step) made before."
)


def original(model: nn.Module) -> nn.Module:
    """The module that ``torch.compile(module)`` was called with; any other one as it is."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    while dynamo is not None and isinstance(model, dynamo.OptimizedModule):
        model = model._orig_mod
    return model


def refuse_compiled_caller() -> None:
    """Refuse compiled code as a caller: torch would compile ledger, clipping and noise into it."""
    if torch.compiler.is_compiling() or _compiles_what_is_called():
        raise EngineStateError(_CALLER)


def _compiles_what_is_called() -> bool:
    if "torch._dynamo" not in sys.modules:
        return False
    return callable(torch._C._dynamo.eval_frame.get_eval_frame_callback())


def refuse_compiled_backward() -> None:
    """Refuse compiled autograd: it traces backward passes, and factors are made in them."""
    autograd = sys.modules.get("torch._dynamo.compiled_autograd")
    if autograd is not None and autograd.compiled_autograd_enabled:
        raise UnsupportedOperationError(
            "compiled autograd is on, which traces the backward pass instead of running it, and "
            "per-sample gradients are found in the backward pass. Call the engine's backward() "
            "outside of compiled autograd; torch.compile of the model itself may stay."
        )


class UnguardedCode:
    """What a model would run that its compiled code does not notice.

    Dynamo guards neither hooks of the backward pass, which it cannot trace, nor the functions of
    classes, which somebody may replace.
    """

    def __init__(self) -> None:
        self._hooks: dict[int, Any] = {}  # by the dictionary that modules hold them in
        self._functions: dict[type, dict[str, Any]] = {}
        self._values: list[Any] = []

    def note(self, model: nn.Module) -> None:
        """It was traced as it is now; what was noted before stays."""
        for module in model.modules():
            for hooks in (module._backward_hooks, module._backward_pre_hooks):
                self._hooks[id(hooks)] = hooks
        held = (each.value for each in walk_attributes(model))
        for kind in {*map(type, model.modules()), *map(type, held)}:
            for each in kind.__mro__:
                if each.__flags__ & _CAN_CHANGE and each not in self._functions:
                    self._functions[each] = _list_functions(each)
        self._values = [*self._list_values()]

    @property
    def has_hooks(self) -> bool:
        """Whether there are hooks that only run where the model runs as it was written."""
        return bool(
            any(self._hooks.values())
            or _of_modules._global_backward_hooks
            or _of_modules._global_backward_pre_hooks
        )

    def find_changed(self) -> str | None:
        """The name of a class whose functions were replaced since; None if none were."""
        values = [*self._list_values()]
        if len(values) == len(self._values) and all(map(is_, values, self._values)):
            return None
        for each, functions in self._functions.items():
            if functions != _list_functions(each):
                return each.__qualname__
        self._values = values  # something else in a class, which Dynamo guards
        return None

    def _list_values(self) -> Iterator[Any]:
        return chain.from_iterable(vars(each).values() for each in self._functions)


_CAN_CHANGE = 1 << 9  # classes that were made in Python


def _list_functions(kind: type) -> dict[str, Any]:
    kinds = FunctionType, property, classmethod, staticmethod
    return {name: value for name, value in vars(kind).items() if isinstance(value, kinds)}


class Uncompiled:
    """As long as one of these is on, what was compiled runs as it was written.

    One that is dropped without having been switched off does not count any more.
    """

    def __init__(self) -> None:
        self._is_on = False
        finalize(self, _STANCE.settle).atexit = False

    def start(self) -> None:
        """From here on.

        Raises:
            EngineStateError: compiled code calls this, and it is too late for itself.
        """
        self._is_on = True
        _STANCE.holders.add(self)
        if not _STANCE.settle():
            self.stop()
            raise EngineStateError(_CALLER)

    def stop(self) -> None:
        """It is not needed here any more."""
        if self._is_on:
            _STANCE.holders.discard(self)
            self._is_on = not _STANCE.settle()  # last: an interrupt may come before


class Lent:
    """Somebody else's: once that is dropped, there is nothing to be switched off."""

    def __init__(self, hold: Uncompiled) -> None:
        self._hold = ref(hold)

    def start(self) -> None:
        """As long as it is there."""
        hold = self._hold()
        if hold is not None:
            hold.start()

    def stop(self) -> None:
        """If it is still there."""
        hold = self._hold()
        if hold is not None:
            hold.stop()


@contextmanager
def run_uncompiled() -> Iterator[None]:
    """In it what was compiled runs as it was written."""
    refuse_compiled_caller()  # before Dynamo looks into what garbage collection may change
    hold = Uncompiled()
    hold.start()
    try:
        yield
    finally:
        hold.stop()


@contextmanager
def traced_by_dynamo(stance: str) -> Iterator[None]:
    """In it torch's compiler has this stance, whoever holds another one."""
    changed: Any = torch.compiler.set_stance(stance)
    try:
        yield
    finally:
        changed.__exit__(None, None, None)


class _Stance:
    """The compiler's stance, of which there is one in a process."""

    def __init__(self) -> None:
        self.holders: WeakSet[Uncompiled] = WeakSet()
        self._lock = RLock()  # a finalizer may come at any moment
        self._changed: Any = None  # what puts the stance back

    def settle(self) -> bool:
        """Make the stance what it is to be; whether that was possible."""
        if "torch._dynamo" not in sys.modules:
            return True  # to load it takes a second, and nothing was compiled
        with self._lock:
            try:
                if self.holders and self._changed is None:
                    self._changed = torch.compiler.set_stance("force_eager")
                elif not self.holders and self._changed is not None:
                    self._changed.__exit__(None, None, None)
                    self._changed = None
            except RuntimeError:  # compiled code is running: at the next occasion
                return False
        return True


_STANCE = _Stance()
