"""Tensors inside whatever a model is called with: tuples, dicts, dataclasses and the like."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

from torch import Tensor


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors of a nested structure."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in _children(tree):
            yield from tensors_in(child)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The structure with ``function`` applied to every tensor; what is not understood is kept."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, list):
        return [map_tensors(function, child) for child in tree]
    if isinstance(tree, tuple):
        mapped = [map_tensors(function, child) for child in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    if isinstance(tree, MutableMapping):
        return _map_mapping(function, tree)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return _map_fields(function, tree)
    return tree


def has_list_of(count: int, tree: Any) -> bool:
    """Whether there is a list with one tensor, or one structure of tensors, for each sample."""
    if _is_list_of(count, tree):
        return True
    return any(has_list_of(count, child) for child in _children(tree))


def choose_in_lists(tree: Any, places: list[int], count: int) -> Any:
    """The structure with some of the entries of all such lists."""
    if _is_list_of(count, tree):
        return type(tree)([tree[place] for place in places])
    if isinstance(tree, list):
        return [choose_in_lists(child, places, count) for child in tree]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return tuple(choose_in_lists(child, places, count) for child in tree)
    if isinstance(tree, dict):
        return {key: choose_in_lists(child, places, count) for key, child in tree.items()}
    return tree


def _is_list_of(count: int, tree: Any) -> bool:
    if not isinstance(tree, list) or len(tree) != count:
        return False
    return all(next(tensors_in(child), None) is not None for child in tree)


def _map_mapping(function: Callable[[Tensor], Any], tree: MutableMapping[Any, Any]) -> Any:
    result = copy.copy(tree)
    for key, child in list(tree.items()):
        result[key] = map_tensors(function, child)
    return result


def _map_fields(function: Callable[[Tensor], Any], tree: Any) -> Any:
    result = copy.copy(tree)
    for field in dataclasses.fields(tree):
        child = map_tensors(function, getattr(tree, field.name))
        object.__setattr__(result, field.name, child)
    return result


def _children(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return list(tree)
    if isinstance(tree, Mapping):
        return list(tree.values())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    return []
