"""Plain attributes of modules: what a model can keep besides parameters and buffers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

_OTHERS = frozenset(vars(nn.Module()))  # parameters, buffers, children, hooks, the mode
_PLAIN = (bool, int, float, str, type(None))
_DEEPEST = 4
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
    elif id(value) not in known and depth < _DEEPEST:
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
