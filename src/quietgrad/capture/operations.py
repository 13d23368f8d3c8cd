"""What is known of torch's functions: their spellings, what they do, and the rules for them.

Also functions that a TorchFunctionMode does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.autograd.function import _SingleLevelFunction

from quietgrad.capture.compiled import Uncompiled

TorchFunction = Callable[..., Any]
Rule = Callable[..., Any]
RuleT = TypeVar("RuleT", bound=Rule)

_RULES: dict[TorchFunction, Rule] = {}
_RULES_FOR_COMPLEX: dict[TorchFunction, Rule] = {}


def rule(*functions: TorchFunction, takes_complex: bool = False) -> Callable[[RuleT], RuleT]:
    """Register a rule: called as ``rule(call, *args, **kwargs)`` in place of the operation.

    Args:
        functions: the operations.
        takes_complex: whether it is exact for complex tensors, too.
    """

    def register(function: RuleT) -> RuleT:
        for operation in functions:
            _RULES[operation] = function
            if takes_complex:
                _RULES_FOR_COMPLEX[operation] = function
        return function

    return register


def find_rule(function: TorchFunction, *, is_complex: bool = False) -> Rule | None:
    """The rule for a torch operation, if there is one."""
    return (_RULES_FOR_COMPLEX if is_complex else _RULES).get(function)


def variants(names: Iterable[str]) -> list[TorchFunction]:
    """All spellings of operations: torch.f, Tensor.f, f_, __f__, __rf__, __if__."""
    found = []
    for name in names:
        spellings = (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
        for holder in (torch, Tensor):
            found += [getattr(holder, s) for s in spellings if callable(getattr(holder, s, None))]
    return found


_IN_PLACE_OPERATORS = frozenset(
    f"{name}__"
    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split()
)


def operation_name(function: TorchFunction) -> str:
    """A readable name of a torch function."""
    return getattr(function, "__name__", None) or str(function)


def is_in_place(function: TorchFunction) -> bool:
    """Whether a function changes its first argument: ``add_``, ``__iadd__``, ``__setitem__``."""
    name = operation_name(function)
    if name.startswith("__"):
        return name in ("__setitem__", "__set__") or name.removeprefix("__i") in _IN_PLACE_OPERATORS
    return name.endswith("_")


# They tell about a tensor without computing with it.
_METADATA = frozenset(
    getattr(Tensor, name)
    for name in (
        "size dim ndimension numel nelement stride storage_offset element_size is_contiguous "
        "is_floating_point is_complex get_device data_ptr untyped_storage requires_grad_ "
        "__len__ __repr__ __format__ __hash__ is_same_size"
    ).split()
)
_COMPUTING_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
# They let others have a tensor's gradient.
_HOOKS = {Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook}
_NUMBERS = {Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__float__}
# Each entry of the input appears at most once in the output, unchanged.
_ISOMETRIC = frozenset(
    variants(
        "view reshape transpose permute t swapaxes swapdims movedim moveaxis unsqueeze squeeze "
        "flatten unflatten chunk split split_with_sizes unbind select narrow contiguous clone "
        "view_as reshape_as adjoint ravel tensor_split vsplit hsplit to type type_as float double "
        "half bfloat16".split()
    )
)
# Their tensor arguments give a type or a shape only.
_SHAPED_LIKE = frozenset(variants("type_as view_as reshape_as to".split()))
# Made from nothing, though a tensor of data lends its type and device.
_FACTORIES = frozenset(variants("new_ones new_zeros new_full new_empty new_tensor".split()))
_EXPANDING = frozenset(variants("expand broadcast_to repeat tile".split()))
_JOINING = frozenset(variants("cat concat concatenate stack hstack vstack".split()))
_ARITHMETIC = frozenset(variants("add sub mul div truediv pow multiply divide subtract".split()))


class Operation(NamedTuple):
    """What does not change from call to call: looked up once, for there are many calls."""

    is_metadata: bool
    is_hook: bool
    is_initialization: bool  # sets up a parameter
    reads_numbers: bool
    writes_in_place: bool
    makes_constants: bool
    ignores_data: bool
    is_isometric: bool
    is_expanding: bool
    is_arithmetic: bool
    is_joining: bool


@cache
def classify(function: TorchFunction) -> Operation:
    """What a torch function does with its arguments."""
    is_getter = getattr(function, "__name__", "") == "__get__"
    attribute = str(getattr(getattr(function, "__self__", None), "__name__", ""))
    is_plain_property = is_getter and attribute not in _COMPUTING_PROPERTIES
    return Operation(
        is_metadata=function in _METADATA or is_plain_property,
        is_hook=function in _HOOKS,
        is_initialization=getattr(function, "__module__", None) == "torch.nn.init",
        reads_numbers=function in _NUMBERS,
        writes_in_place=is_in_place(function),
        makes_constants=function in _FACTORIES,
        ignores_data=function in _SHAPED_LIKE,
        is_isometric=function in _ISOMETRIC or (is_getter and attribute in ("T", "mT")),
        is_expanding=function in _EXPANDING,
        is_arithmetic=function in _ARITHMETIC,
        is_joining=function in _JOINING,
    )


# -- functions that a mode does not see -----------------------------------------------------------

# While the forward of an attached model runs, calls of ``torch.autograd.Function.apply`` and of
# functions by ``torch.jit.script`` or ``trace`` are looked at, and what ``torch.compile`` made runs
# as it was written. Outside of it torch is as it was.

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
        self._uncompiled = Uncompiled()

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
        self._uncompiled.start()

    def stop(self) -> None:
        """Leave torch as it was."""
        if self._own is None:
            return
        if vars(_Base).get("apply") is self._own:
            del _Base.apply
            _Scripted.__call__ = _call_scripted
        self._uncompiled.stop()
        self._own = None  # last: an interrupt may come before


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
