"""Tensors inside whatever a model is called with: tuples, dicts, dataclasses and the like."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

_NOT_RETURNED = (type, nn.Module, FunctionType, MethodType, ModuleType)


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors of a nested structure."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in _children(tree):
            yield from tensors_in(child)


@dataclasses.dataclass(frozen=True)
class Branch:
    """What a model returned together; ``is_list`` where its children are numbered."""

    children: tuple[Node, ...]
    is_list: bool


Node = Tensor | Branch


def returned(tree: Any) -> Node:
    """What a model returned, down to its tensors, which may be anywhere in an object."""
    return _returned(tree, frozenset())


def returned_tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors that a model returned, in the order of :func:`returned`."""
    yield from leaves(returned(tree))


def leaves(node: Node) -> Iterator[Tensor]:
    """The tensors of what was returned."""
    if isinstance(node, Tensor):
        yield node
    else:
        for child in node.children:
            yield from leaves(child)


def _returned(tree: Any, above: frozenset[int]) -> Node:
    if isinstance(tree, Tensor):
        return tree
    if id(tree) in above:  # an object that refers to itself
        return Branch((), is_list=False)
    children = _children(tree) or _held(tree)
    within = above | {id(tree)}
    is_list = isinstance(tree, (list, tuple))
    return Branch(tuple(_returned(child, within) for child in children), is_list)


def _held(tree: Any) -> list[Any]:
    """What an object that is no container has in its attributes: a distribution, a namespace."""
    if isinstance(tree, _NOT_RETURNED):
        return []
    slots = [name for kind in type(tree).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [getattr(tree, name, None) for name in slots if isinstance(name, str)]
    return values + list(getattr(tree, "__dict__", {}).values())


def map_tensors(
    function: Callable[[Tensor], Any], tree: Any, lists: Callable[[Any], Any] = lambda tree: None
) -> Any:
    """The structure with ``function`` applied to every tensor; what is not understood is kept.

    Args:
        function: what becomes of a tensor.
        tree: the structure.
        lists: what becomes of a list as a whole; None where its entries are gone through.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, list):
        whole = lists(tree)
        return [map_tensors(function, c, lists) for c in tree] if whole is None else whole
    if isinstance(tree, tuple):
        mapped = [map_tensors(function, child, lists) for child in tree]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else tuple(mapped)
    if isinstance(tree, MutableMapping):
        return _map_mapping(function, tree, lists)
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return _map_fields(function, tree, lists)
    return tree


def lists_of(count: int, tree: Any) -> Iterator[list[Any]]:
    """The lists with one tensor, or one structure of tensors, for each of ``count`` samples."""
    if is_list_of(count, tree):
        yield tree
    else:
        for child in _children(tree):
            yield from lists_of(count, child)


def is_list_of(count: int, tree: Any) -> bool:
    """Whether it is a list of that many entries, all with tensors."""
    if not isinstance(tree, list) or len(tree) != count:
        return False
    return all(next(tensors_in(child), None) is not None for child in tree)


def _map_mapping(
    function: Callable[[Tensor], Any],
    tree: MutableMapping[Any, Any],
    lists: Callable[[Any], Any],
) -> Any:
    result = copy.copy(tree)
    for key, child in list(tree.items()):
        result[key] = map_tensors(function, child, lists)
    return result


def _map_fields(function: Callable[[Tensor], Any], tree: Any, lists: Callable[[Any], Any]) -> Any:
    result = copy.copy(tree)
    for field in dataclasses.fields(tree):
        child = map_tensors(function, getattr(tree, field.name), lists)
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
