"""What a model holds in attributes of its modules: counters, caches, arrays, generators.

One walker finds it, also in closures and partial applications that modules hold, in attributes of
their classes, and in global variables that their methods read. Repeats of a forward put back the
insides of what was searched for data, and of nothing else: what changes in others shows as a
difference when the forward is repeated. Others are iterators, open files, loggers, locks, threads,
what is nested deeper than ``_DEEPEST``, and what comes after the first ``_MOST_VISITED`` objects
that are not plain values.
"""

from __future__ import annotations

import dis
import functools
import io
import logging
import operator
import random
import sys
import threading
import zlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
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

from quietgrad.capture.compare import attributes_of, dense_parts, is_same, slots_of
from quietgrad.capture.draws import find_devices, preserve_randomness
from quietgrad.factors.base import Verdict, content_of, is_at_hand, version_of

# Parameters, buffers, children, hooks, the mode. What is kept in buffers is found elsewhere.
_OTHERS = frozenset(vars(nn.Module())) - {"_non_persistent_buffers_set"}
_REBOUND = ("training", "_buffers", "_parameters")  # the others that are put back
_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_SIMPLE = (*_PLAIN, np.generic, Decimal, Fraction)
_BYTES = (bytearray, array, memoryview)
_ARRAYS = (np.ndarray, *_BYTES)
_VALUES = (Tensor, *_ARRAYS, *_SIMPLE)
_NUMBERS = (float, complex, bytes, np.inexact, Decimal, Fraction)
_CONTAINERS = (list, tuple, deque, set, frozenset, OrderedDict, dict, MappingProxyType)
_MAPPINGS = (OrderedDict, dict, MappingProxyType)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LOCK = type(threading.Lock()), type(threading.RLock()), threading.Thread
_CLOSED = (Tensor, logging.Filterer, logging.Manager, io.IOBase, *_LOCK)
_CALLABLES = (FunctionType, MethodType, functools.partial, CellType)
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
_MOST_COMPARED = 2**16  # entries of an array; above, only its identity is

Restore = Callable[[], object]


# -- the walker ----------------------------------------------------------------------------------


class _Held(NamedTuple):
    """An object in an attribute; ``is_searched`` if all that it holds is found as well.

    ``is_plain`` if it is a container that is looked at as a whole.
    """

    path: str
    value: Any
    is_searched: bool
    is_plain: bool = False


def walk_attributes(model: nn.Module) -> Iterator[_Held]:
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
        if name not in _OTHERS
    )
    pending.extend((bound.path, bound.value, 0) for bound in _find_bindings(model))
    count = len(pending)
    while pending:
        path, value, depth = pending.popleft()
        if type(value) in _PLAIN or _is(value, _SIMPLE):
            yield _Held(path, value, is_searched=True)
        elif id(value) not in known:
            known[id(value)] = value  # kept alive: an id may come again
            is_plain = _is_plain(value)
            inside = () if is_plain else _items(value)
            children = [(path + key, child, depth + 1) for key, child in inside]
            count += sum(type(child) not in _PLAIN for _, child, _ in children)
            within = depth < _DEEPEST and count < _MOST_VISITED
            is_searched = _is_open(value) and (within or not children)
            yield _Held(path, value, is_searched, is_plain)
            if within:
                pending.extend(children)


def find_values(
    model: nn.Module, held: Iterable[_Held] | None = None, *, iterators: bool = False
) -> Iterator[tuple[str, Any]]:
    """Every tensor, array, number and string among them, and containers of plain ones.

    With ``iterators`` these, too, into which nobody can look. ``held`` is all there is, if known.
    """
    for path, value, _, is_plain in walk_attributes(model) if held is None else held:
        if is_plain or _is(value, _VALUES) or (iterators and _is(value, Iterator)):
            yield path, value


def _is(value: Any, kinds: Any) -> bool:
    """As isinstance, without asking the object for its ``__class__``, which may raise."""
    return issubclass(type(value), kinds)


def _is_plain(value: Any) -> bool:
    """Whether it is a container of nothing but plain values, or tuples of such."""
    if type(value) not in _CONTAINERS:
        return False
    parts = [value, value.values()] if _is(value, _MAPPINGS) else [value]
    kinds = set(map(type, parts[0])).union(*(map(type, part) for part in parts[1:]))
    if tuple in kinds:
        inner = (entry for entry in chain(*parts) if type(entry) is tuple)
        kinds = (kinds - {tuple}) | set(map(type, chain.from_iterable(inner)))
    return kinds <= _PLAIN


def _entries(value: Any) -> list[tuple[Any, Any]]:
    """The keys, or positions, and entries of a container."""
    for kind in _CONTAINERS:
        if _is(value, kind):
            found: Any = kind.items(value) if kind in _MAPPINGS else enumerate(kind.__iter__(value))
            return list(found)
    if _holds_objects(value):
        return list(enumerate(value.ravel().tolist()))
    with suppress(Exception):  # one that loads its values, or holds them weakly
        return list(value.items()) if _is(value, Mapping) else []
    return []


def _holds_objects(value: Any) -> bool:
    return _is(value, np.ndarray) and value.dtype.hasobject


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if not _is_open(value):
        return
    for index, (key, child) in enumerate(_entries(value)):
        if type(key) in _PLAIN:
            yield f"[{key!r}]", child
        else:
            yield f".keys()[{index}]", key
            yield f".values()[{index}]", child
    if _is(value, _CALLABLES):
        yield from _items_of_callable(value)
    elif _is(value, (type, nn.Module)):
        held = vars(value).items()
        yield from (
            (f".{n}", c)
            for n, c in held
            if n not in _OTHERS or n in ("_buffers", "_parameters", "_modules")
            if not n.startswith("__") and (_is(value, nn.Module) or _is_state(c))
        )
    elif not _is(value, np.ndarray):
        yield from ((f".{name}", child) for name, child in attributes_of(value).items())


def _items_of_callable(value: Any) -> Iterator[tuple[str, Any]]:
    """What a function closes over and what its defaults are; what is applied to it already."""
    if _is_own_function(value):
        names = value.__code__.co_freevars
        yield from ((f".{n}", c) for n, c in zip(names, value.__closure__ or (), strict=False))
        yield ".__defaults__", value.__defaults__
        yield ".__kwdefaults__", value.__kwdefaults__
        yield ".__dict__", vars(value)
    elif _is(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif _is(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif _is(value, CellType):
        with suppress(ValueError):  # an empty one
            yield "", value.cell_contents


def _is_open(value: Any) -> bool:
    return not str(type(value).__module__).startswith(_OWN) and not _is(value, _CLOSED)


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
        elif not _is(self.value, FunctionType) and (
            vars(self.owner).get(self.name, self) is not self.value
        ):
            setattr(self.owner, self.name, self.value)


def _find_bindings(model: nn.Module) -> Iterator[_Binding]:
    """Those of the user's own classes of modules; libraries keep no samples there."""
    kinds = dict.fromkeys(base for module in model.modules() for base in type(module).__mro__)
    own = [kind for kind in kinds if not _is_foreign(kind.__module__)]
    defined = [(kind, name, value) for kind in own for name, value in vars(kind).items()]
    held = [value for module in model.modules() for value in vars(module).values()]
    functions = [
        value for value in (*held, *(v for _, _, v in defined)) if _is(value, FunctionType)
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
            if _is(inner, FunctionType) and id(inner) not in seen and len(seen) < _DEEPEST:
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
    return _is(value, FunctionType) and not _is_foreign(value.__module__)


def _is_state(value: Any) -> bool:
    kind = type(value)
    if _is(value, type):
        return not _is_foreign(value.__module__) and not issubclass(value, nn.Module)
    if _is(value, (*_NO_STATE, property, classmethod, staticmethod)):
        return False
    if kind in _PLAIN or _is(value, (*_VALUES, *_CONTAINERS, *_GENERATORS)):
        return True
    return not _is_foreign(kind.__module__) and not hasattr(kind, "__get__")


def _own_hooks(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The user's forward hooks, which may hold something, too."""
    for holder in (module._forward_hooks, module._forward_pre_hooks):
        for number, hook in enumerate(holder.values()):
            if not str(type(hook).__module__).startswith(_OWN):
                yield f"hook {number}", hook


# -- data that is kept ---------------------------------------------------------------------------


class AttributeWatch:
    """Finds data that a training forward left in an attribute.

    It would enter later batches, as a cache or as an initialization by the first batch, and count
    for one step only.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: dict[str, Any] | None = None
        self._backward: dict[str, Any] = {}
        self._emptied: dict[str, tuple[nn.Module, str]] = {}

    def begin(self, *, looking: bool) -> None:
        """A forward is about to run; ``looking`` if :meth:`find_data` will be called after it."""
        self._before = self._mark_all() if looking else None

    def begin_backward(self) -> None:
        """A backward pass is about to run, in which hooks may keep gradients."""
        if self._before is not None:
            self._backward = self._mark_all()

    def _mark_all(self) -> dict[str, Any]:
        return {name: _mark(value) for name, value in find_values(self._model, iterators=True)}

    def reset_known(self) -> None:
        """Empty what every forward sets anew."""
        for module, attribute in self._emptied.values():
            setattr(module, attribute, None)

    def can_reset(self, name: str) -> bool:
        """Whether it is an attribute of a module itself, and a tensor."""
        path, _, attribute = name.rpartition(".")
        modules = dict(self._model.named_modules())
        return path in modules and isinstance(vars(modules[path]).get(attribute), Tensor)

    def reset(self, name: str) -> None:
        """Empty such an attribute, and from here on after every forward."""
        self._emptied[name] = self.locate(name)
        self.reset_known()

    def locate(self, name: str) -> tuple[nn.Module, str]:
        """The module that has an attribute, and how it is called there."""
        path, _, attribute = name.rpartition(".")
        return self._model.get_submodule(path), attribute

    def find_gradients(self) -> str | None:
        """The name of an attribute that was set since, to something other than a count."""
        if self._before is None:
            return None
        for name, value in find_values(self._model, iterators=True):
            is_kept = _is(value, (Tensor, Iterator, *_ARRAYS)) or _has_new_number(
                value, self._backward.get(name)
            )
            if is_kept and _mark(value) != self._backward.get(name):
                return name
        return None

    def find_data(
        self, is_data: Callable[[Tensor], bool], *, numbers_were_read: bool
    ) -> str | None:
        """The name of an attribute that was set since :meth:`begin` and holds data.

        Args:
            is_data: tells whether a tensor was computed from samples.
            numbers_were_read: whether values of such tensors were turned into numbers of Python;
                then a new floating-point number is taken for one of them.
        """
        if self._before is None:
            return None
        for name, value in find_values(self._model, iterators=True):
            mark, before = _mark(value), self._before.get(name)
            if mark == before:
                continue
            if _is(value, Iterator):
                return name  # a new one, and nobody knows over what
            if _is(value, Tensor):
                if is_data(value):
                    return name
            elif numbers_were_read and _has_new_number(value, before):
                return name
        return None


def _has_new_number(value: Any, before: Any) -> bool:
    if not _is(value, _CONTAINERS):
        return _is(value, _NUMBERS) or (_is(value, _ARRAYS) and not _holds_objects(value))
    known = dict(_entries(before[1])) if before and _is(before[1], _CONTAINERS) else {}
    changed = (
        entry
        for key, child in _entries(value)
        for entry in (key, child)
        if key not in known or known[key] != child
    )
    flat = chain.from_iterable(e if type(e) is tuple else (e,) for e in changed)
    return any(_is(entry, _NUMBERS) for entry in flat)


def _mark(value: Any) -> Any:
    """What tells later whether it is still the same."""
    if _is(value, Iterator):
        return _Same(value)
    if _is(value, Tensor):
        return _Same(value), version_of(value)
    if _is(value, np.ndarray):
        return _Same(value), 0 if _holds_objects(value) else _digest(value)
    if _is(value, _BYTES):
        return _Same(value), bytes(value)
    return type(value), _copy_entries(value) if _is(value, _CONTAINERS) else value


def _digest(value: Any) -> int:
    """Of all that is in an array; of one mapped from a file only of its beginning."""
    seen = value.ravel()[:_MOST_COMPARED] if _is(value, np.memmap) else value
    return zlib.crc32(np.ascontiguousarray(seen).tobytes())


def _copy_entries(value: Any) -> Any:
    """A container as Python stores it, by itself."""
    kind: Any = next(kind for kind in _CONTAINERS if _is(value, kind))
    if kind in _MAPPINGS:
        return dict(kind.items(value))
    return (list if kind in (list, deque) else kind)(kind.__iter__(value))


class _Same:
    """Equal if it is the same object, which it keeps alive: an id may come again."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


# -- what a repeat of the forward puts back ------------------------------------------------------

_IS_REPEATING = ContextVar("is_repeating", default=False)


def is_repeating() -> bool:
    """Whether a model is run once more to verify it, and not because its user called it."""
    return _IS_REPEATING.get()


@contextmanager
def mark_repeating() -> Iterator[None]:
    """In here :func:`is_repeating` says so."""
    token = _IS_REPEATING.set(True)
    try:
        yield
    finally:
        _IS_REPEATING.reset(token)


class HeldValues(NamedTuple):
    """What a model holds, to be compared.

    Attributes:
        values: of attributes and buffers, by name; of large tensors in attributes nothing.
        generators: the states of those of NumPy and Python that modules hold.
    """

    values: dict[str, Any]
    generators: list[Any]


def copy_values(model: nn.Module, held: Sequence[_Held] | None = None) -> HeldValues:
    """What it holds now; ``held`` is all that its attributes hold, if known."""
    held = list(walk_attributes(model)) if held is None else held
    generators = [state for each in held for state in _state_of_generator(each.value)]
    buffers = {
        f"{name}{place}": part.clone()
        for name, buffer in model.named_buffers()
        for place, part in dense_parts(buffer).items()
    }
    values = {name: _copy_value(value) for name, value in find_values(model, held)}
    return HeldValues(values | buffers, generators)


def compare_values(ones: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Verdict]:
    """By name, whether both copies hold the same."""
    return {
        name: is_same(ones.get(name, _MISSING), others.get(name, _MISSING))
        for name in ones.keys() | others.keys()
    }


_MISSING = object()


def _state_of_generator(value: Any) -> Iterator[Any]:
    if _is(value, np.random.Generator):
        yield str(value.bit_generator.state)
    elif _is(value, np.random.RandomState):
        yield str(value.get_state())
    elif _is(value, random.Random) and not _is(value, random.SystemRandom):
        yield value.getstate()


def _copy_value(value: Any) -> Any:
    if _is(value, Tensor):
        if not _is_dense(value):
            return None
        is_small = value.numel() <= _MOST_COMPARED
        return value.detach().clone() if is_small else content_of(value)
    if _is(value, np.ndarray):
        if _holds_objects(value):
            return None
        return value.copy() if value.size <= _MOST_COMPARED else _digest(value)
    if _is(value, _BYTES):
        return bytes(value)
    return _copy_entries(value) if _is(value, _CONTAINERS) else value


class ModelState:
    """All that a model holds besides parameters, as it is now.

    Attributes:
        held: what its attributes hold.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        buffers = (_Held("", buffer, is_searched=False) for buffer in model.buffers())
        self.held = list(walk_attributes(model))
        held = [*buffers, *self.held]
        self._restores: list[Restore] = [
            *(partial(_restore_module, module, dict(vars(module))) for module in modules),
            *(partial(_restore_mapping, m._buffers, dict(m._buffers)) for m in modules),
            *(partial(_restore_mapping, m._modules, dict(m._modules)) for m in modules),
            *(partial(_restore_mapping, hooks, dict(hooks)) for hooks in _list_hooks(modules)),
            *(restore for each in held for restore in _keep(each)),
            *(bound.restore for bound in _find_bindings(model)),
        ]

    def restore(self) -> None:
        """Put back what has changed."""
        for restore in self._restores:
            restore()


def _list_hooks(modules: list[nn.Module]) -> list[dict[int, Any]]:
    """Where modules hold forward hooks: a first forward may install some, and note that it did."""
    names = [f"_forward{pre}_hooks{kind}" for pre in ("", "_pre") for kind in ("", "_with_kwargs")]
    return [getattr(m, n) for m in modules for n in (*names, "_forward_hooks_always_called")]


@contextmanager
def preserve_state(model: nn.Module, state: ModelState | None = None) -> Iterator[None]:
    """Runs of the model in here, without gradients, leave all that it holds as it was.

    ``state`` is the model's present one, where it is known.
    """
    state = state or ModelState(model)
    try:
        with torch.no_grad(), preserve_randomness(find_devices(model)):
            yield
    finally:
        state.restore()


def _keep(held: _Held) -> Iterator[Restore]:
    """How to put back the insides of what can change in place."""
    value = held.value
    if _is(value, Tensor):
        if _is_dense(value) and not value.requires_grad and not value.is_inference():
            yield partial(_restore_tensor, value, value.clone())
    elif _is(value, np.ndarray):
        is_written = value.flags.writeable and not _is(value, np.memmap)
        if is_written and (held.is_searched or not _holds_objects(value)):
            yield partial(_restore_array, value, value.copy())
    elif _is(value, (bytearray, array)):
        yield partial(_restore_sequence, value, value[:])
    elif _is(value, _GENERATORS):
        yield from _keep_generator(value)
    elif _is(value, CellType):
        with suppress(ValueError):
            yield partial(_restore_cell, value, value.cell_contents)
    elif held.is_searched and not _is(value, _SIMPLE):
        yield from _keep_entries(value)


def _keep_generator(value: Any) -> Iterator[Restore]:
    if _is(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif _is(value, (torch.Generator, np.random.RandomState)):
        yield partial(value.set_state, value.get_state())
    elif not _is(value, random.SystemRandom):
        yield partial(value.setstate, value.getstate())


def _is_dense(tensor: Tensor) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.is_nested
    return is_strided and tensor.device.type != "meta"


def _keep_entries(value: Any) -> Iterator[Restore]:
    if _is(value, dict):
        yield partial(_restore_mapping, value, _copy_entries(value))
    elif _is(value, (list, set, deque)):
        kind: Any = next(kind for kind in (list, set, deque) if _is(value, kind))
        yield partial(_restore_collection, kind, value, list(kind.__iter__(value)))
    if type(value) not in _CONTAINERS and not _is(value, _CALLABLES):
        yield partial(_restore_attributes, value, attributes_of(value))


def _restore_module(module: nn.Module, held: dict[str, Any]) -> None:
    """Which attributes there are, and what they are bound to: counters, modes, caches."""
    now = vars(module)
    for name in now.keys() - held.keys() - _OTHERS:
        del now[name]
    now.update((n, child) for n, child in held.items() if n in _REBOUND or n not in _OTHERS)


def _restore_tensor(tensor: Tensor, value: Tensor) -> None:
    if is_at_hand(tensor) and torch.equal(tensor, value):
        return  # to write one that autograd has saved is an error
    with torch.no_grad():
        if tensor.shape != value.shape:  # observers grow theirs when first run
            tensor.resize_(value.shape)
        # Elsewhere it would have to be waited for whether it has changed; nobody is told of a write
        # that changes nothing.
        uncounted = torch.autograd._unsafe_preserve_version_counter(tensor)  # type: ignore[attr-defined]
        with nullcontext() if is_at_hand(tensor) else uncounted:
            tensor.copy_(value)


def _restore_array(written: Any, value: Any) -> None:
    if written.tobytes() != value.tobytes():
        written[...] = value


def _restore_sequence(sequence: Any, entries: Any) -> None:
    if sequence != entries:
        sequence[:] = entries


def _restore_mapping(mapping: dict[Any, Any], entries: dict[Any, Any]) -> None:
    # Not by methods of its own, which may do something else (a Counter adds).
    kind: Any = OrderedDict if _is(mapping, OrderedDict) else dict
    if not (
        _same_objects(kind.keys(mapping), entries)
        and _same_objects(kind.values(mapping), entries.values())
    ):
        kind.clear(mapping)
        for key, child in entries.items():
            kind.__setitem__(mapping, key, child)


def _restore_collection(kind: Any, collection: Any, entries: list[Any]) -> None:
    if not _same_objects(kind.__iter__(collection), entries):
        kind.clear(collection)
        (set.update if kind is set else kind.extend)(collection, entries)


def _restore_cell(cell: Any, contents: Any) -> None:
    if cell.cell_contents is not contents:
        cell.cell_contents = contents


def _restore_attributes(value: Any, held: dict[str, Any]) -> None:
    now = attributes_of(value)
    if _same_objects(now, held) and _same_objects(now.values(), held.values()):
        return
    slots = slots_of(value)
    for name in now.keys() - held.keys():
        if name in slots:
            object.__delattr__(value, name)
        else:
            del object.__getattribute__(value, "__dict__")[name]
    for name, child in held.items():
        if name not in slots:
            object.__getattribute__(value, "__dict__")[name] = child
        elif now.get(name, held) is not child:
            object.__setattr__(value, name, child)


def _same_objects(some: Iterable[Any], others: Iterable[Any]) -> bool:
    ones, rest = list(some), list(others)
    return len(ones) == len(rest) and all(map(operator.is_, ones, rest))
