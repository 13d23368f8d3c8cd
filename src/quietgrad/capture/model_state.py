"""What a model holds besides trainable parameters: attributes, buffers and generators.

One walker finds it. Repeats of a forward put it back, and data that a forward left in it is
refused. Closures, iterators and open files are not looked into.
"""

from __future__ import annotations

import logging
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from quietgrad.capture.compare import attributes_of, is_equal, slots_of

_OTHERS = frozenset(vars(nn.Module()))  # parameters, buffers, children, hooks, the mode
_SIMPLE = (bool, int, float, str, type(None), np.generic)
_VALUES = (Tensor, np.ndarray, bytearray, array, *_SIMPLE)
_NUMBERS = (float, np.floating, np.ndarray, bytearray, array)
# The data itself, and loggers and engines that a module may know: nothing that a forward keeps.
_CLOSED = (Tensor, np.ndarray, Dataset, DataLoader, logging.Logger)
_OWN = ("quietgrad.engine", "quietgrad.capture")
_DEEPEST = 6
_MOST_COMPARED = 2**16  # entries of an array or a buffer; above, their identity and torch's count

Restore = Callable[[], object]


# -- the walker ----------------------------------------------------------------------------------


def walk_attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Everything in modules' attributes and inside of it, by a path; each object once."""
    known: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    pending: deque[tuple[str, Any, int]] = deque(
        (f"{path}.{name}" if path else name, value, 0)
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if name not in _OTHERS
    )
    while pending:
        path, value, depth = pending.popleft()
        if isinstance(value, _SIMPLE):
            yield path, value
        elif id(value) not in known:
            known[id(value)] = value  # kept alive: an id may come again
            yield path, value
            if depth < _DEEPEST:
                pending.extend((path + key, child, depth + 1) for key, child in _items(value))


def find_values(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every tensor, array, number and string among them."""
    return ((path, value) for path, value in walk_attributes(model) if isinstance(value, _VALUES))


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if not _is_open(value):
        return
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", child) for key, child in list(value.items()))
    elif isinstance(value, (list, tuple, deque, set, frozenset)):
        yield from ((f"[{index}]", child) for index, child in enumerate(list(value)))
    yield from ((f".{name}", child) for name, child in attributes_of(value).items())


def _is_open(value: Any) -> bool:
    return not isinstance(value, _CLOSED) and not type(value).__module__.startswith(_OWN)


# -- data that is kept ---------------------------------------------------------------------------


class AttributeWatch:
    """Finds data that a training forward left in an attribute.

    It would enter later batches, as a cache or as an initialization by the first batch, and count
    for one step only.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: dict[str, Any] | None = None

    def begin(self, *, looking: bool) -> None:
        """A forward is about to run; ``looking`` if :meth:`find_data` will be called after it."""
        self._before = None
        if looking:
            self._before = {name: _mark(value) for name, value in find_values(self._model)}

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
        for name, value in find_values(self._model):
            if _mark(value) == self._before.get(name):
                continue
            if isinstance(value, Tensor):
                if is_data(value):
                    return name
            elif numbers_were_read and isinstance(value, _NUMBERS):
                return name
        return None


def _mark(value: Any) -> Any:
    """What tells later whether it is still the same."""
    if isinstance(value, Tensor):
        return _Same(value), _version(value)
    if isinstance(value, np.ndarray):
        return _Same(value), value.tobytes() if value.size <= _MOST_COMPARED else b""
    if isinstance(value, (bytearray, array)):
        return _Same(value), bytes(value)
    return type(value), value


class _Same:
    """Equal if it is the same object, which it keeps alive: an id may come again."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


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


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Runs of the model in here, without gradients, leave all that it holds as it was."""
    restores: list[Restore] = []
    for module in model.modules():
        restores += [partial(_restore_module, module, dict(vars(module)))]
        buffers = dict(module._buffers)
        restores += [partial(_restore_mapping, module._buffers, buffers)]
        restores += [r for buffer in buffers.values() if buffer is not None for r in _keep(buffer)]
    restores += [restore for _, value in walk_attributes(model) for restore in _keep(value)]
    try:
        with torch.no_grad(), preserve_randomness():
            yield
    finally:
        for restore in restores:
            restore()


@contextmanager
def preserve_randomness() -> Iterator[None]:
    """Dropout and the like draw the same in every run, and the generators are left as they were."""
    states: list[tuple[Callable[[Any], Any], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (np.random.set_state, np.random.get_state()),  # noqa: NPY002  models draw from it
        (random.setstate, random.getstate()),
    ]
    try:
        yield
    finally:
        for restore, state in states:
            restore(state)


def generator_states() -> dict[str, Any]:
    """The states of the global generators, to be compared."""
    state: Any = np.random.get_state()  # noqa: NPY002  models draw from it
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy.random": (state[0], state[1].tobytes(), *state[2:]),
        "random": random.getstate(),
    }


def seed_all(model: nn.Module, seed: int) -> None:
    """Seed the global generators and those that the model keeps in its attributes."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    for _, value in walk_attributes(model):
        if isinstance(value, torch.Generator):
            value.manual_seed(seed)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(seed).state
        elif isinstance(value, (random.Random, np.random.RandomState)):
            value.seed(seed)


def _keep(value: Any) -> Iterator[Restore]:
    """How to put back the insides of what can change in place."""
    if isinstance(value, Tensor):
        if not value.requires_grad and not value.is_inference():
            yield partial(_restore_tensor, value, value.clone())
    elif isinstance(value, np.ndarray):
        if value.flags.writeable and not isinstance(value, np.memmap):
            yield partial(_restore_array, value, value.copy())
    elif isinstance(value, (torch.Generator, np.random.RandomState)):
        set_state: Any = value.set_state
        yield partial(set_state, value.get_state())
    elif isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, random.Random):
        if not isinstance(value, random.SystemRandom):
            yield partial(value.setstate, value.getstate())
    else:
        yield from _keep_entries(value)


def _keep_entries(value: Any) -> Iterator[Restore]:
    if isinstance(value, (list, bytearray, array)):
        yield partial(_restore_sequence, value, value[:])
    elif isinstance(value, dict):
        yield partial(_restore_mapping, value, dict(value))
    elif isinstance(value, (set, deque)):
        yield partial(_restore_collection, value, list(value))
    if _is_open(value):
        yield partial(_restore_attributes, value, attributes_of(value))


def _restore_module(module: nn.Module, held: dict[str, Any]) -> None:
    """Which attributes there are, and what they are bound to: counters, modes, caches."""
    now = vars(module)
    for name in now.keys() - held.keys():
        del now[name]
    now.update(held)


def _restore_tensor(tensor: Tensor, value: Tensor) -> None:
    # Writing one that autograd has saved is an error: only what has changed.
    if not torch.equal(tensor, value):
        with torch.no_grad():
            tensor.resize_(value.shape).copy_(value)  # observers grow theirs when first run


def _restore_array(written: Any, value: Any) -> None:
    if written.tobytes() != value.tobytes():
        written[...] = value


def _restore_sequence(sequence: Any, entries: Any) -> None:
    is_list = isinstance(sequence, list)
    if not _same_objects(sequence, entries) if is_list else sequence != entries:
        sequence[:] = entries


def _restore_mapping(mapping: dict[Any, Any], entries: dict[Any, Any]) -> None:
    if not (_same_objects(mapping, entries) and _same_objects(mapping.values(), entries.values())):
        # Not by methods of its own, which may do something else (a Counter adds).
        kind: Any = OrderedDict if isinstance(mapping, OrderedDict) else dict
        kind.clear(mapping)
        for key, child in entries.items():
            kind.__setitem__(mapping, key, child)


def _restore_collection(collection: Any, entries: list[Any]) -> None:
    if not _same_objects(collection, entries):
        collection.clear()
        (collection.update if isinstance(collection, set) else collection.extend)(entries)


def _restore_attributes(value: Any, held: dict[str, Any]) -> None:
    now = attributes_of(value)
    if _same_objects(now, held) and _same_objects(now.values(), held.values()):
        return
    slots = slots_of(type(value))
    for name in now.keys() - held.keys():
        if name in slots:
            object.__delattr__(value, name)
        else:
            del value.__dict__[name]
    for name, child in held.items():
        if name not in slots:
            value.__dict__[name] = child
        elif now.get(name, held) is not child:
            object.__setattr__(value, name, child)


def _same_objects(some: Iterable[Any], others: Iterable[Any]) -> bool:
    ones, rest = list(some), list(others)
    return len(ones) == len(rest) and all(a is b for a, b in zip(ones, rest, strict=True))


# -- buffers -------------------------------------------------------------------------------------
class _Place(NamedTuple):
    """Where a buffer or a parameter is registered."""

    module: nn.Module
    attribute: str
    path: str
    holder: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.path}.{self.attribute}" if self.path else self.attribute


@dataclass(frozen=True)
class _Seen:
    """A buffer as it was when the samples were handed out, or when a write was last approved."""

    place: _Place
    buffer: Tensor
    version: int
    value: Tensor | None

    @staticmethod
    def now(place: _Place, buffer: Tensor) -> _Seen:
        value = buffer.detach().clone() if _is_compared(buffer) else None
        return _Seen(place, buffer, _version(buffer), value)

    @property
    def is_unchanged(self) -> bool:
        same_value = self.value is None or is_equal(self.value, self.buffer)
        return same_value and self.version == _version(self.buffer)

    def put_back(self) -> None:
        """Undo the change, where the value before it is known."""
        self.place.holder[self.place.attribute] = self.buffer
        if self.value is not None:
            with torch.no_grad():
                self.buffer.resize_(self.value.shape).copy_(self.value)


class BufferWatch:
    """Finds the buffers that were written by a route that no operation on tensors shows.

    Operations are judged while they run (``refusals``). This is for what goes around them:
    ``.data``, numpy, code that torch compiled, a forward without gradients. Torch counts the writes
    to a tensor; small buffers on the CPU are compared entry by entry too, since an array of numpy
    that shares their memory is not counted.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.named_modules())
        self._seen: dict[tuple[nn.Module, str], _Seen] = {}
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Samples are handed out: from here on, changes must be accounted for."""
        before, self._seen = self._seen, {}
        for place, buffer in self._held():
            key = place.module, place.attribute
            seen = before.get(key)
            if seen is None or seen.buffer is not buffer or not seen.is_unchanged:
                seen = _Seen.now(place, buffer)
            self._seen[key] = seen
        named = {_address(seen.buffer): seen.place.name for seen in self._seen.values()}
        self._names = {address: name for address, name in named.items() if address}

    def name_at(self, address: int) -> str | None:
        """The buffer whose memory begins there."""
        return self._names.get(address)

    @contextmanager
    def writing(self, written: Iterable[Tensor]) -> Iterator[None]:
        """A write that was judged happens in here. What went unseen before it stays in view."""
        addresses = {_address(tensor) for tensor in written} & set(self._names)
        approved = [
            key
            for key, seen in (self._seen.items() if addresses else ())
            if _address(seen.buffer) in addresses and seen.is_unchanged
        ]
        yield
        for key in approved:
            seen = self._seen[key]
            self._seen[key] = _Seen.now(seen.place, seen.buffer)

    def find_changed(self, is_constant: Callable[[Tensor], bool]) -> str | None:
        """The name of what was written or replaced unseen, and is put back; None if nothing was.

        Args:
            is_constant: tells whether a tensor is known to hold nothing of the samples: such a one
                may take the place of another.
        """
        first: str | None = None
        for place, buffer in list(self._held()):
            seen = self._seen.get((place.module, place.attribute))
            if seen is not None and seen.buffer is buffer:
                fine = seen.is_unchanged
            else:
                fine = isinstance(buffer, nn.Parameter) or is_constant(buffer)
            if not fine:
                first = first or place.name
                if seen is not None:
                    seen.put_back()
                else:
                    del place.holder[place.attribute]
        return first

    def _held(self) -> Iterator[tuple[_Place, Tensor]]:
        for path, module in self._modules:
            for holder in (module._buffers, module._parameters):
                for attribute, held in holder.items():
                    # Weights in training are the user's to load: what data may write to them while
                    # a forward runs is judged there.
                    if held is not None and not held.requires_grad:
                        yield _Place(module, attribute, path, holder), held


def _is_compared(buffer: Tensor) -> bool:
    is_plain = buffer.layout is torch.strided and not buffer.is_quantized
    return is_plain and buffer.device.type == "cpu" and buffer.numel() <= _MOST_COMPARED


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
