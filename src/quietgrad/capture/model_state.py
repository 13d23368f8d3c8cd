"""Plain attributes of modules: what a model can keep besides parameters and buffers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_OTHERS = frozenset(vars(nn.Module()))  # parameters, buffers, children, hooks, the mode
_PLAIN = (bool, int, float, str, type(None))
_ATTRIBUTES_DEEPEST = 4
_MOST_COMPARED = 2**16  # entries of an array; above, only its identity is


def plain_attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Every tensor, array, number and string in attributes, containers and objects, by a path."""
    # What is found once is not looked into again: modules share their configurations.
    known = {id(parameter) for parameter in model.parameters()}
    for path, module in model.named_modules():
        for attribute, value in list(vars(module).items()):
            if attribute not in _OTHERS:
                prefix = f"{path}.{attribute}" if path else attribute
                for inner, leaf in _leaves(value, known):
                    yield prefix + inner, leaf


class AttributeWatch:
    """Finds data that a training forward left in an attribute.

    It would enter later batches, as a cache or as an initialization by the first batch, and count
    for one step only.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before: dict[str, Any] | None = None

    def begin(self, *, looking: bool) -> None:
        """A forward is about to run, to be looked at or not: there can be thousands of attributes.

        Args:
            looking: whether :meth:`kept` is going to be asked.
        """
        self._before = dict(map(_marked, plain_attributes(self._model))) if looking else None

    def kept(self, is_data: Callable[[Tensor], bool], *, numbers_were_read: bool) -> str | None:
        """The name of an attribute that was set since :meth:`begin` and holds data.

        Args:
            is_data: tells whether a tensor was computed from samples.
            numbers_were_read: whether values of such tensors were turned into numbers of Python;
                then a new floating-point number is taken for one of them.
        """
        if self._before is None:
            return None
        for name, leaf in plain_attributes(self._model):
            if _marked((name, leaf))[1] == self._before.get(name):
                continue
            if is_data(leaf) if isinstance(leaf, Tensor) else _is_number(leaf, numbers_were_read):
                return name
        return None


def _marked(named: tuple[str, Any]) -> tuple[str, Any]:
    """What tells later whether it is still the same."""
    name, leaf = named
    if isinstance(leaf, Tensor):
        return name, (_Same(leaf), 0 if leaf.is_inference() else leaf._version)
    if isinstance(leaf, np.ndarray):
        return name, (_Same(leaf), leaf.tobytes() if leaf.size <= _MOST_COMPARED else b"")
    return name, (type(leaf), leaf)


class _Same:
    """Equal if it is the same object, which it keeps alive: an id may come again."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _is_number(leaf: Any, numbers_were_read: bool) -> bool:
    return numbers_were_read and isinstance(leaf, (float, np.ndarray))


def _leaves(value: Any, known: set[int], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """What is in an attribute, each with the index that leads to it."""
    if isinstance(value, _PLAIN):
        yield "", value
    elif id(value) not in known and depth < _ATTRIBUTES_DEEPEST:
        known.add(id(value))
        if isinstance(value, (Tensor, np.ndarray)):
            yield "", value
        for key, child in _items(value):
            for inner, leaf in _leaves(child, known, depth + 1):
                yield f"{key}{inner}", leaf


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in list(value.items())]
    if isinstance(value, (list, tuple, deque, set, frozenset)):
        return [(f"[{index}]", child) for index, child in enumerate(list(value))]
    if isinstance(value, (nn.Module, type, Tensor, np.ndarray)) or callable(value):
        return ()
    return [(f".{name}", child) for name, child in list(getattr(value, "__dict__", {}).items())]


_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_STATE_DEEPEST = 3

Restore = Callable[[], None]


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Runs of the model in here, without gradients, leave all that it holds as it was."""
    restores = [_buffers_of(model), *(_attributes_of(module) for module in model.modules())]
    restores += [restore for value in _values(model) for restore in _contents_of(value)]
    try:
        with torch.no_grad(), same_randomness():
            yield
    finally:
        for restore in restores:
            restore()


@contextmanager
def same_randomness() -> Iterator[None]:
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


def seed_all(model: nn.Module, seed: int) -> None:
    """Seed the global generators and those that the model keeps in its attributes."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)
    for value in _values(model):
        for leaf in _walk(value):
            if isinstance(leaf, torch.Generator):
                leaf.manual_seed(seed)
            elif isinstance(leaf, np.random.Generator):
                leaf.bit_generator.state = type(leaf.bit_generator)(seed).state
            elif isinstance(leaf, (random.Random, np.random.RandomState)):
                leaf.seed(seed)


def _buffers_of(model: nn.Module) -> Restore:
    held = [(m, name, b) for m in model.modules() for name, b in m._buffers.items()]
    saved = [(module, name, b, None if b is None else b.clone()) for module, name, b in held]

    def restore() -> None:
        for module, name, buffer, value in saved:
            module._buffers[name] = buffer
            if buffer is not None and value is not None:
                _write_back(buffer, value)

    return restore


def _write_back(tensor: Tensor, value: Tensor) -> None:
    # Writing one that autograd has saved is an error: only what has changed.
    if not torch.equal(tensor, value):
        with torch.no_grad():
            tensor.resize_(value.shape).copy_(value)  # observers grow theirs when first run


def _attributes_of(module: nn.Module) -> Restore:
    """Which attributes there are, and what they are bound to: counters, modes, caches."""
    saved = {name: v for name, v in vars(module).items() if name not in _OF_EVERY_MODULE}

    def restore() -> None:
        now = vars(module)
        for name in set(now) - set(saved) - _OF_EVERY_MODULE:
            del now[name]
        now.update(saved)

    return restore


def _values(model: nn.Module) -> list[Any]:
    return [
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if name not in _OF_EVERY_MODULE
    ]


def _walk(value: Any, depth: int = 0) -> Iterator[Any]:
    """A value and what is in it, if it is a container."""
    yield value
    if depth < _STATE_DEEPEST and isinstance(value, (list, tuple, deque, set, dict)):
        for child in list(value.values() if isinstance(value, dict) else value):
            yield from _walk(child, depth + 1)


def _contents_of(value: Any) -> Iterator[Restore]:
    """How to put back the insides of what can change in place."""
    for leaf in _walk(value):
        restore = _inside_of(leaf)
        if restore is not None:
            yield restore


def _inside_of(leaf: Any) -> Restore | None:
    if isinstance(leaf, torch.Generator):
        return _with(leaf.set_state, leaf.get_state())
    if isinstance(leaf, np.random.Generator):
        bits, numbers = leaf.bit_generator, leaf.bit_generator.state
        return lambda: setattr(bits, "state", numbers)
    if isinstance(leaf, np.random.RandomState):
        return _with(leaf.set_state, leaf.get_state())
    if isinstance(leaf, random.Random) and not isinstance(leaf, random.SystemRandom):
        return _with(leaf.setstate, leaf.getstate())
    if isinstance(leaf, Tensor) and not leaf.requires_grad and not leaf.is_inference():
        value = leaf.clone()
        return lambda: _write_back(leaf, value)
    return _entries_of(leaf)


def _with(put_back: Callable[[Any], Any], state: Any) -> Restore:
    def restore() -> None:
        put_back(state)

    return restore


def _entries_of(container: Any) -> Restore | None:
    if isinstance(container, list):
        entries = list(container)
        return lambda: container.__setitem__(slice(None), entries)
    if isinstance(container, (dict, set)):
        return _refill(container, container.copy(), container.update)
    if isinstance(container, deque):
        return _refill(container, list(container), container.extend)
    return None


def _refill(container: Any, entries: Any, fill: Callable[[Any], None]) -> Restore:
    def restore() -> None:
        container.clear()
        fill(entries)

    return restore
