"""What a model holds in attributes of its modules: counters, caches, arrays, generators.

The walker of ``attributes.py`` finds it. Repeats of a forward put back the insides of what was
searched for data, and of nothing else: what changes in what is left out of the search shows as a
difference when the forward is repeated.
"""

from __future__ import annotations

import operator
import random
import zlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from types import CellType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.attributes import (
    ARRAYS,
    BYTES,
    CALLABLES,
    CONTAINERS,
    GENERATORS,
    MAPPINGS,
    OTHERS,
    SIMPLE,
    Held,
    entries_of,
    find_bindings,
    find_values,
    holds_objects,
    is_of,
    walk_attributes,
)
from quietgrad.capture.compare import attributes_of, dense_parts, is_same, slots_of
from quietgrad.capture.draws import find_devices, preserve_randomness
from quietgrad.factors.base import Verdict, content_of, is_at_hand, version_of

_REBOUND = ("training", "_buffers", "_parameters")  # of OTHERS those that are put back
_NUMBERS = (float, complex, bytes, np.inexact, Decimal, Fraction)
_MOST_COMPARED = 2**16  # entries of an array; above, only its identity is

Restore = Callable[[], object]


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
            is_kept = is_of(value, (Tensor, Iterator, *ARRAYS)) or _has_new_number(
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
            if is_of(value, Iterator):
                return name  # a new one, and nobody knows over what
            if is_of(value, Tensor):
                if is_data(value):
                    return name
            elif numbers_were_read and _has_new_number(value, before):
                return name
        return None


def _has_new_number(value: Any, before: Any) -> bool:
    if not is_of(value, CONTAINERS):
        return is_of(value, _NUMBERS) or (is_of(value, ARRAYS) and not holds_objects(value))
    known = dict(entries_of(before[1])) if before and is_of(before[1], CONTAINERS) else {}
    changed = (
        entry
        for key, child in entries_of(value)
        for entry in (key, child)
        if key not in known or known[key] != child
    )
    flat = chain.from_iterable(e if type(e) is tuple else (e,) for e in changed)
    return any(is_of(entry, _NUMBERS) for entry in flat)


def _mark(value: Any) -> Any:
    """What tells later whether it is still the same."""
    if is_of(value, Iterator):
        return _Same(value)
    if is_of(value, Tensor):
        return _Same(value), version_of(value)
    if is_of(value, np.ndarray):
        return _Same(value), 0 if holds_objects(value) else _digest(value)
    if is_of(value, BYTES):
        return _Same(value), bytes(value)
    return type(value), _copy_entries(value) if is_of(value, CONTAINERS) else value


def _digest(value: Any) -> int:
    """Of all that is in an array; of one mapped from a file only of its beginning."""
    seen = value.ravel()[:_MOST_COMPARED] if is_of(value, np.memmap) else value
    return zlib.crc32(np.ascontiguousarray(seen).tobytes())


def _copy_entries(value: Any) -> Any:
    """A container as Python stores it, by itself."""
    kind: Any = next(kind for kind in CONTAINERS if is_of(value, kind))
    if kind in MAPPINGS:
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


def copy_values(model: nn.Module, held: Sequence[Held] | None = None) -> HeldValues:
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
    if is_of(value, np.random.Generator):
        yield str(value.bit_generator.state)
    elif is_of(value, np.random.RandomState):
        yield str(value.get_state())
    elif is_of(value, random.Random) and not is_of(value, random.SystemRandom):
        yield value.getstate()


def _copy_value(value: Any) -> Any:
    if is_of(value, Tensor):
        if not _is_dense(value):
            return None
        is_small = value.numel() <= _MOST_COMPARED
        return value.detach().clone() if is_small else content_of(value)
    if is_of(value, np.ndarray):
        if holds_objects(value):
            return None
        return value.copy() if value.size <= _MOST_COMPARED else _digest(value)
    if is_of(value, BYTES):
        return bytes(value)
    return _copy_entries(value) if is_of(value, CONTAINERS) else value


class ModelState:
    """All that a model holds besides parameters, as it is now.

    Attributes:
        held: what its attributes hold.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        buffers = (Held("", buffer, is_searched=False) for buffer in model.buffers())
        self.held = list(walk_attributes(model))
        held = [*buffers, *self.held]
        self._restores: list[Restore] = [
            *(partial(_restore_module, module, dict(vars(module))) for module in modules),
            *(partial(_restore_mapping, m._buffers, dict(m._buffers)) for m in modules),
            *(partial(_restore_mapping, m._modules, dict(m._modules)) for m in modules),
            *(partial(_restore_mapping, hooks, dict(hooks)) for hooks in _list_hooks(modules)),
            *(restore for each in held for restore in _keep(each)),
            *(bound.restore for bound in find_bindings(model)),
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


def _keep(held: Held) -> Iterator[Restore]:
    """How to put back the insides of what can change in place."""
    value = held.value
    if is_of(value, Tensor):
        if _is_dense(value) and not value.requires_grad and not value.is_inference():
            yield partial(_restore_tensor, value, value.clone())
    elif is_of(value, np.ndarray):
        is_written = value.flags.writeable and not is_of(value, np.memmap)
        if is_written and (held.is_searched or not holds_objects(value)):
            yield partial(_restore_array, value, value.copy())
    elif is_of(value, (bytearray, array)):
        yield partial(_restore_sequence, value, value[:])
    elif is_of(value, GENERATORS):
        yield from _keep_generator(value)
    elif is_of(value, CellType):
        with suppress(ValueError):
            yield partial(_restore_cell, value, value.cell_contents)
    elif held.is_searched and not is_of(value, SIMPLE):
        yield from _keep_entries(value)


def _keep_generator(value: Any) -> Iterator[Restore]:
    if is_of(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif is_of(value, (torch.Generator, np.random.RandomState)):
        yield partial(value.set_state, value.get_state())
    elif not is_of(value, random.SystemRandom):
        yield partial(value.setstate, value.getstate())


def _is_dense(tensor: Tensor) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.is_nested
    return is_strided and tensor.device.type != "meta"


def _keep_entries(value: Any) -> Iterator[Restore]:
    if is_of(value, dict):
        yield partial(_restore_mapping, value, _copy_entries(value))
    elif is_of(value, (list, set, deque)):
        kind: Any = next(kind for kind in (list, set, deque) if is_of(value, kind))
        yield partial(_restore_collection, kind, value, list(kind.__iter__(value)))
    if type(value) not in CONTAINERS and not is_of(value, CALLABLES):
        yield partial(_restore_attributes, value, attributes_of(value))


def _restore_module(module: nn.Module, held: dict[str, Any]) -> None:
    """Which attributes there are, and what they are bound to: counters, modes, caches."""
    now = vars(module)
    for name in now.keys() - held.keys() - OTHERS:
        del now[name]
    now.update((n, child) for n, child in held.items() if n in _REBOUND or n not in OTHERS)


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
    kind: Any = OrderedDict if is_of(mapping, OrderedDict) else dict
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
