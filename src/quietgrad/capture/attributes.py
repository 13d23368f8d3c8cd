"""What hangs at a module: one walker finds it, and nothing else has to know where to look.

It looks into attributes, closures and partial applications that modules hold, attributes of their
classes, and global variables that their methods read. Left out are iterators, open files, loggers,
locks, threads, what is nested deeper than ``_DEEPEST``, and what comes after the first
``_MOST_VISITED`` objects that are not plain values.
"""

from __future__ import annotations

import dis
import functools
import io
import logging
import random
import sys
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from functools import cache
from itertools import chain
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.compare import attributes_of

# Parameters, buffers, children, hooks, the mode. What is kept in buffers is found elsewhere.
OTHERS = frozenset(vars(nn.Module())) - {"_non_persistent_buffers_set"}
PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
SIMPLE = (*PLAIN, np.generic, Decimal, Fraction)
BYTES = (bytearray, array, memoryview)
ARRAYS = (np.ndarray, *BYTES)
_VALUES = (Tensor, *ARRAYS, *SIMPLE)
CONTAINERS = (list, tuple, deque, set, frozenset, OrderedDict, dict, MappingProxyType)
MAPPINGS = (OrderedDict, dict, MappingProxyType)
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
LOCKS = type(threading.Lock()), type(threading.RLock()), threading.Thread
_CLOSED = (Tensor, logging.Filterer, logging.Manager, io.IOBase, *LOCKS)
CALLABLES = (FunctionType, MethodType, functools.partial, CellType)
_NO_STATE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, nn.Module)
_LIBRARIES = frozenset(
    (
        "torch numpy scipy transformers timm peft torchvision quietgrad opacus sklearn accelerate "
        "lightning lightning_fabric lightning_utilities pytorch_lightning torchmetrics"
    ).split()
)
# A module may know of the first ones, and of a Trainer, which knows the data set; the last one
# moves what it keeps around with every pass.
_OWN = (
    "quietgrad.engine",
    "quietgrad.capture",
    "quietgrad.methods",
    "lightning.pytorch.trainer",
    "pytorch_lightning.trainer",
    "torch.distributed",
)
_DEEPEST = 7
_MOST_VISITED = 10**5


# -- the walker ----------------------------------------------------------------------------------


class Held(NamedTuple):
    """An object in an attribute; ``is_searched`` if all that it holds is found as well.

    ``is_plain`` if it is a container that is looked at as a whole.
    """

    path: str
    value: Any
    is_searched: bool
    is_plain: bool = False


def walk_attributes(model: nn.Module) -> Iterator[Held]:
    """Everything in modules' attributes and inside of it, by a path; each object once.

    A container of plain immutable values is one object, however many it has. Nothing is asked of an
    object's own methods, which may raise, but the items of a mapping that is no dictionary:
    containers and attributes are read as Python stores them.
    """
    known: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    pending: deque[tuple[str, Any, int]] = deque(
        (f"{path}.{name}" if path else name, value, 0)
        for path, module in model.named_modules()
        for name, value in (*vars(module).items(), *_own_hooks(module))
        if name not in OTHERS
    )
    pending.extend((bound.path, bound.value, 0) for bound in find_bindings(model))
    count = len(pending)
    while pending:
        path, value, depth = pending.popleft()
        if type(value) in PLAIN or is_of(value, SIMPLE):
            yield Held(path, value, is_searched=True)
        elif id(value) not in known:
            known[id(value)] = value  # kept alive: an id may come again
            is_plain = _is_plain(value)
            inside = () if is_plain else _items(value)
            children = [(path + key, child, depth + 1) for key, child in inside]
            count += sum(type(child) not in PLAIN for _, child, _ in children)
            within = depth < _DEEPEST and count < _MOST_VISITED
            is_searched = _is_open(value) and (within or not children)
            yield Held(path, value, is_searched, is_plain)
            if within:
                pending.extend(children)


def find_values(
    model: nn.Module, held: Iterable[Held] | None = None, *, iterators: bool = False
) -> Iterator[tuple[str, Any]]:
    """Every tensor, array, number and string among them, and containers of plain ones.

    With ``iterators`` these, too, into which nobody can look. ``held`` is all there is, if known.
    """
    for path, value, _, is_plain in walk_attributes(model) if held is None else held:
        if is_plain or is_of(value, _VALUES) or (iterators and is_of(value, Iterator)):
            yield path, value


def is_of(value: Any, kinds: Any) -> bool:
    """As isinstance, without asking the object for its ``__class__``, which may raise."""
    return issubclass(type(value), kinds)


def _is_plain(value: Any) -> bool:
    """Whether it is a container of nothing but plain values, or tuples of such."""
    if type(value) not in CONTAINERS:
        return False
    parts = [value, value.values()] if is_of(value, MAPPINGS) else [value]
    kinds = set(map(type, parts[0])).union(*(map(type, part) for part in parts[1:]))
    if tuple in kinds:
        inner = (entry for entry in chain(*parts) if type(entry) is tuple)
        kinds = (kinds - {tuple}) | set(map(type, chain.from_iterable(inner)))
    return kinds <= PLAIN


def entries_of(value: Any) -> list[tuple[Any, Any]]:
    """The keys, or positions, and entries of a container."""
    for kind in CONTAINERS:
        if is_of(value, kind):
            found: Any = kind.items(value) if kind in MAPPINGS else enumerate(kind.__iter__(value))
            return list(found)
    if holds_objects(value):
        return list(enumerate(value.ravel().tolist()))
    with suppress(Exception):  # one that loads its values, or holds them weakly
        return list(value.items()) if is_of(value, Mapping) else []
    return []


def holds_objects(value: Any) -> bool:
    """Whether it is an array of Python objects, whose entries are searched, too."""
    return is_of(value, np.ndarray) and value.dtype.hasobject


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if not _is_open(value):
        return
    for index, (key, child) in enumerate(entries_of(value)):
        if type(key) in PLAIN:
            yield f"[{key!r}]", child
        else:
            yield f".keys()[{index}]", key
            yield f".values()[{index}]", child
    if is_of(value, CALLABLES):
        yield from _items_of_callable(value)
    elif is_of(value, (type, nn.Module)):
        held = vars(value).items()
        yield from (
            (f".{n}", c)
            for n, c in held
            if n not in OTHERS or n in ("_buffers", "_parameters", "_modules")
            if not n.startswith("__") and (is_of(value, nn.Module) or _is_state(c))
        )
    elif not is_of(value, np.ndarray):
        yield from ((f".{name}", child) for name, child in attributes_of(value).items())


def _items_of_callable(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function closes over and what its defaults are; what is applied to it already."""
    if _is_own_function(value):
        names = value.__code__.co_freevars
        yield from ((f".{n}", c) for n, c in zip(names, value.__closure__ or (), strict=False))
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
        yield ".__dict__", vars(value)
    elif is_of(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif is_of(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif is_of(value, CellType):
        with suppress(ValueError):  # an empty one
            yield "", value.cell_contents


def _is_open(value: Any) -> bool:
    return not str(type(value).__module__).startswith(_OWN) and not is_of(value, _CLOSED)


# -- what is bound outside of the model's objects ------------------------------------------------


class _Binding(NamedTuple):
    """A class attribute, or a global variable that a method reads."""

    path: str
    owner: Any
    name: str
    value: Any

    def restore(self) -> None:
        """Bind the name to the same object again."""
        if isinstance(self.owner, dict):
            if self.owner.get(self.name, self) is not self.value:
                self.owner[self.name] = self.value
        elif not is_of(self.value, FunctionType) and (
            vars(self.owner).get(self.name, self) is not self.value
        ):
            setattr(self.owner, self.name, self.value)


def find_bindings(model: nn.Module) -> Iterator[_Binding]:
    """Those of the user's own classes of modules; libraries keep no samples there."""
    kinds = dict.fromkeys(base for module in model.modules() for base in type(module).__mro__)
    own = [kind for kind in kinds if not _is_foreign(kind.__module__)]
    defined = [(kind, name, value) for kind in own for name, value in vars(kind).items()]
    held = [value for module in model.modules() for value in vars(module).values()]
    functions = [
        value for value in (*held, *(v for _, _, v in defined)) if is_of(value, FunctionType)
    ]
    for kind, name, value in defined:
        function = getattr(value, "__func__", value)  # of static and class methods
        is_own = _is_own_function(function)
        if is_own or (not name.startswith("__") and _is_state(value)):
            yield _Binding(f"{kind.__name__}.{name}", kind, name, function if is_own else value)
    read = dict.fromkeys(
        (id(variables), name)
        for function in filter(_is_own_function, functions)
        for variables, name in _globals_read(function)
    )
    by_id = {id(function.__globals__): function.__globals__ for function in functions}
    for place, name in read:
        variables = by_id.get(place, {})
        value = variables.get(name)
        if name in variables and (_is_own_function(value) or _is_state(value)):
            yield _Binding(f"global '{name}'", variables, name, value)


def _globals_read(function: Any, seen: frozenset[int] = frozenset()) -> Iterator[tuple[Any, str]]:
    """Global names that a function reads or writes, and those of functions beside it."""
    globals_ = function.__globals__
    for cell in function.__closure__ or ():  # a decorator holds what it decorates
        with suppress(ValueError):
            inner = cell.cell_contents
            if is_of(inner, FunctionType) and id(inner) not in seen and len(seen) < _DEEPEST:
                yield from _globals_read(inner, seen | {id(function)})
    for name in _global_names(function.__code__):
        yield globals_, name
        other = globals_.get(name)
        if _is_own_function(other) and id(other) not in seen and len(seen) < _DEEPEST:
            yield from _globals_read(other, seen | {id(function)})


@cache
def _global_names(code: CodeType) -> tuple[str, ...]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    own = (i.argval for i in dis.get_instructions(code) if i.opname.endswith("_GLOBAL"))
    return tuple(dict.fromkeys((*own, *(name for each in inner for name in _global_names(each)))))


def _is_foreign(module: str | None) -> bool:
    """Whether it is defined in an installed library and not in the user's code."""
    top = str(module).partition(".")[0]
    return top in _LIBRARIES or top in sys.stdlib_module_names


def _is_own_function(value: Any) -> bool:
    return is_of(value, FunctionType) and not _is_foreign(value.__module__)


def _is_state(value: Any) -> bool:
    kind = type(value)
    if is_of(value, type):
        return not _is_foreign(value.__module__) and not issubclass(value, nn.Module)
    if is_of(value, (*_NO_STATE, property, classmethod, staticmethod)):
        return False
    if kind in PLAIN or is_of(value, (*_VALUES, *CONTAINERS, *GENERATORS)):
        return True
    return not _is_foreign(kind.__module__) and not hasattr(kind, "__get__")


def _own_hooks(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The user's forward hooks, which may hold something, too."""
    for holder in (module._forward_hooks, module._forward_pre_hooks):
        for number, hook in enumerate(holder.values()):
            if not str(type(hook).__module__).startswith(_OWN):
                yield f"hook {number}", hook
