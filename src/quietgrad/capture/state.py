"""Runs of a model that leave no trace: buffers, attributes, modes and generators are put back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_DEEPEST = 3

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
    if depth < _DEEPEST and isinstance(value, (list, tuple, deque, set, dict)):
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
