"""What a model holds in attributes of its modules: counters, caches, arrays, generators.

One walker finds it. Repeats of a forward put it back, and data that a forward left in it is
refused. Closures, iterators and open files are not looked into.
"""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.compare import attributes_of, slots_of
from quietgrad.factors.base import version_of

_OTHERS = frozenset(vars(nn.Module()))  # parameters, buffers, children, hooks, the mode
_SIMPLE = (bool, int, float, str, type(None), np.generic)
_VALUES = (Tensor, np.ndarray, bytearray, array, *_SIMPLE)
_NUMBERS = (float, np.floating, np.ndarray, bytearray, array)
_OWN = ("quietgrad.engine", "quietgrad.capture")  # a module may know its engine
_DEEPEST = 6
_MOST_COMPARED = 2**16  # entries of an array; above, only its identity is

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
    is_own = str(type(value).__module__).startswith(_OWN)
    return not is_own and not isinstance(value, (Tensor, np.ndarray))


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
        return _Same(value), version_of(value)
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


class ModelState:
    """All that a model holds besides parameters, as it is now."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        held = [*(b for b in model.buffers()), *(value for _, value in walk_attributes(model))]
        self._restores: list[Restore] = [
            *(partial(_restore_module, module, dict(vars(module))) for module in modules),
            *(partial(_restore_mapping, m._buffers, dict(m._buffers)) for m in modules),
            *(restore for value in held for restore in _keep(value)),
        ]

    def restore(self) -> None:
        """Put back what has changed."""
        for restore in self._restores:
            restore()


@contextmanager
def preserve_state(model: nn.Module, state: ModelState | None = None) -> Iterator[None]:
    """Runs of the model in here, without gradients, leave all that it holds as it was.

    ``state`` is the model's present one, where it is known.
    """
    state = state or ModelState(model)
    try:
        with torch.no_grad(), preserve_randomness():
            yield
    finally:
        state.restore()


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
    slots = slots_of(value)
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
