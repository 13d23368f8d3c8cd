"""Tensors inside nested structures, and whether two results are the same but for rounding."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from functools import cache
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.errors import UnsupportedOperationError
from quietgrad.factors.base import (
    Verdict,
    all_of,
    any_of,
    has_same_entries,
    is_at_hand,
    is_surely_equal,
    verdict_of,
)

_OPAQUE = (type, nn.Module, FunctionType, MethodType, BuiltinFunctionType, ModuleType)

_DEEPEST = 100  # containers in containers: Python's own stack is not much deeper

# Rounding errors of an entry near zero are those of what was added up to it.
_SUMMANDS = 4.0
# What cancels leaves rounding errors, far below the tolerance for the largest entries.
_FLOOR = 0.01
_ROUNDED = 0.01
_FILLS = 3
_INFO = {
    torch.finfo(d).bits: torch.finfo(d) for d in (torch.bfloat16, torch.float32, torch.float64)
}


# -- nested structures ---------------------------------------------------------------------------


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """All tensors of tuples, lists, dictionaries and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for child in _children(tree):
            yield from tensors_in(child)


def refuse_tangled(tree: Any, what: str, *, may_be_cyclic: bool = False) -> None:
    """Refuse containers that cannot be gone through: too deep, or parts of themselves.

    Args:
        tree: the structure.
        what: what the model does with it, for the message.
        may_be_cyclic: whether parts of themselves are understood, and objects are looked into.
    """
    if isinstance(tree, Tensor):
        return
    path: list[Any] = [iter((tree,))]
    within: list[int] = [0]
    done: set[int] = set()
    while path:
        for part in path[-1]:
            children = _children(part)
            if not children and may_be_cyclic and not isinstance(part, Tensor):
                children = list(attributes_of(part).values())
            if id(part) in within and children and not may_be_cyclic:
                raise _tangled_refusal(what, "a container that contains itself")
            if children and id(part) not in done:
                done.add(id(part))
                path.append(iter(children))
                within.append(id(part))
                break
        else:
            path.pop()
            within.pop()
        if len(path) > _DEEPEST:
            raise _tangled_refusal(what, f"containers more than {_DEEPEST} deep in each other")


def _tangled_refusal(what: str, found: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"the model {what} {found}: it cannot be gone through to find the samples. Use tensors, "
        "or plain lists, tuples and dictionaries of them."
    )


def _children(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return list(tree)
    if isinstance(tree, Tensor):
        return []
    if isinstance(tree, Mapping):
        return list(tree.values())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    return []


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object has in its ``__slots__`` and its ``__dict__``; nothing of modules and code."""
    if issubclass(type(value), _OPAQUE):
        return {}
    # Not by methods of its own, which may raise.
    found = {}
    for name in (*slots_of(value), "__dict__"):
        with suppress(AttributeError):
            found[name] = object.__getattribute__(value, name)
    held = found.pop("__dict__", {})
    return found | held if issubclass(type(held), dict) else found


def slots_of(value: Any) -> tuple[str, ...]:
    """The attributes that an instance of a class of Python holds outside of a ``__dict__``."""
    kind: Any = type(value)
    return _slots_of(kind)


@cache
def _slots_of(kind: Any) -> tuple[str, ...]:
    slotted = [vars(base) for base in kind.__mro__ if "__slots__" in vars(base)]
    named = [(name, slot) for base in slotted for name, slot in base.items()]
    return tuple(name for name, slot in named if isinstance(slot, MemberDescriptorType))


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
        result = copy.copy(tree)
        for key, child in list(tree.items()):
            result[key] = map_tensors(function, child, lists)
        return result
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        instance = copy.copy(tree)
        for field in dataclasses.fields(tree):
            child = map_tensors(function, getattr(tree, field.name), lists)
            object.__setattr__(instance, field.name, child)
        return instance
    return tree


def lists_of(count: int, tree: Any) -> Iterator[Any]:
    """The lists with one tensor, or one structure of tensors, for each of ``count`` samples."""
    if is_list_of(count, tree):
        yield tree
    else:
        for child in _children(tree):
            yield from lists_of(count, child)


def is_list_of(count: int, tree: Any) -> bool:
    """Whether it is a list or tuple of that many entries, all with tensors."""
    if not isinstance(tree, (list, tuple)) or hasattr(tree, "_fields") or len(tree) != count:
        return False
    return all(next(tensors_in(child), None) is not None for child in tree)


@dataclasses.dataclass(frozen=True)
class Branch:
    """What a model returned together; ``is_list`` where its children are numbered."""

    children: tuple[Node, ...]
    is_list: bool


Node = Tensor | Branch


def parse_output(tree: Any, above: frozenset[int] = frozenset()) -> Node:
    """What a model returned, down to its tensors, which may be anywhere in an object."""
    if isinstance(tree, Tensor):
        return tree
    if id(tree) in above:  # an object that refers to itself
        return Branch((), is_list=False)
    children = _children(tree) or attributes_of(tree).values()
    within = above | {id(tree)}
    is_list = isinstance(tree, (list, tuple))
    return Branch(tuple(parse_output(child, within) for child in children), is_list)


def leaves(node: Node) -> Iterator[Tensor]:
    """The tensors of what was returned, in order."""
    if isinstance(node, Tensor):
        yield node
    else:
        for child in node.children:
            yield from leaves(child)


# -- equality ------------------------------------------------------------------------------------


def dense_parts(tensor: Tensor) -> dict[str, Tensor]:
    """What a tensor is stored as: itself; the parts of a sparse or nested one; nothing on meta."""
    if tensor.device.type == "meta":
        return {}
    if tensor.is_nested:
        return {f"[{index}]": part for index, part in enumerate(tensor.detach().unbind())}
    if tensor.layout is torch.strided:
        return {"": tensor}
    entries = tensor.detach().to_sparse_coo().coalesce()
    return {".indices()": entries.indices(), ".values()": entries.values()}


def is_equal(one: Tensor, other: Tensor) -> Verdict:
    """Whether shape, type and entries are the same; a NaN that stays is no change."""
    if one.layout != other.layout or one.dtype != other.dtype or one.device != other.device:
        return False
    ones, others = dense_parts(one), dense_parts(other)
    if ones.keys() != others.keys():
        return False
    return all_of(_is_equal_part(part, others[place]) for place, part in ones.items())


def _is_equal_part(one: Tensor, other: Tensor) -> Verdict:
    if one.shape != other.shape:
        return False
    if is_surely_equal(one, other):
        return True
    pairs = ((one, other), (_bytes_of(one), _bytes_of(other)))
    return any_of(has_same_entries(*pair) for pair in pairs)


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def is_same(one: Any, other: Any) -> Verdict:
    """Whether two values, or structures of values, arrays and tensors, are equal, NaN and all."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return is_equal(one, other)
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, np.ndarray):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return bool(alike and one.tobytes() == other.tobytes())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all_of(map(is_same, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all_of(is_same(one[key], other[key]) for key in one)
    if hasattr(one, "__dict__") and not isinstance(one, (str, int, float)):
        return is_same(vars(one), vars(other))
    return bool(one == other or one != one)


def is_close(one: Tensor, other: Tensor, rtol: float, atol: float) -> Verdict:
    """Whether shape and type are the same, and entries but for rounding."""
    alike = one.shape == other.shape and one.dtype == other.dtype
    return alike and verdict_of(torch.isclose(one, other, rtol, atol, equal_nan=True).all())


def agree(left: Tensor, right: Tensor, bits: int = 64) -> Verdict:
    """Whether runs of the same size gave the same, computed with numbers of ``bits`` at least.

    The tolerance is each entry's own, and that of its row and of its column: relative to the
    largest entry it would be blind where some are 1e9.
    """
    if left.shape != right.shape:
        return False
    if not has_digits(left):
        return has_same_entries(left, right)
    return is_surely_equal(left, right) or _is_within(left, right, _tolerance(left, bits))


def _tolerance(tensor: Tensor, bits: int) -> float:
    """Kernels may round differently for other values elsewhere in the batch, but hardly more."""
    coarsest = _INFO.get(bits, _INFO[16])  # smaller types are for storage, not for sums
    info = min(torch.finfo(tensor.dtype), coarsest, key=lambda each: each.bits)
    return info.eps * (2 if info.bits == 16 else 64)


def agree_across_sizes(left: Tensor, right: Tensor, bits: int = 64) -> Verdict:
    """Whether runs of different sizes gave the same: kernels round far more differently then."""
    if left.squeeze().shape != right.squeeze().shape:
        return False
    if not has_digits(left):
        # A rounding error may carry a few across the border between two whole numbers. Whether
        # samples are mixed is not told by this: they are replaced in runs of the same size.
        differing = left.squeeze().ne(right.squeeze()).sum()
        return verdict_of(differing <= _ROUNDED * left.numel())
    return _is_within(left, right.reshape(left.shape), _tolerance_across_sizes(left, bits))


def agree_by_sample(
    left: Tensor, right: Tensor, bits: int, largest: float | Tensor, *, same_size: bool = False
) -> Verdict:
    """The same for what gradients ``[B, ...]`` are made of, by its norms.

    Parts of gradients may be nothing but rounding errors, of as many digits as the ``largest``
    entry of all has.
    """
    if left.shape != right.shape:
        return False
    if not has_digits(left):
        return has_same_entries(left, right)
    if not left.numel() or is_surely_equal(left, right):
        return True
    apart, allowed = measure_gaps(left, right, bits, largest, same_size=same_size)
    return verdict_of(apart.le(allowed).all())


def measure_gaps(
    left: Tensor, right: Tensor, bits: int, largest: float | Tensor, *, same_size: bool = False
) -> tuple[Tensor, Tensor]:
    """By sample, how far apart the two are, and how far they may be."""
    ones, others = (t.detach().reshape(len(t), -1) for t in (left, right))
    apart, size, other = (torch.linalg.vector_norm(t, dim=1) for t in (ones - others, ones, others))
    tolerance = (_tolerance if same_size else _tolerance_across_sizes)(left, bits)
    largest = largest.to(size) if isinstance(largest, Tensor) else largest
    allowed = tolerance * (size + _FLOOR * largest * ones.shape[1] ** 0.5)
    # Samples may be broken; then they must be broken in both.
    is_whole = size.isfinite() | other.isfinite()
    return apart.where(is_whole, 0.0), allowed.where(is_whole, 0.0)


def first_difference(
    some: Mapping[str, Tensor], others: Mapping[str, Tensor], bits: int
) -> str | None:
    """The name of a gradient that differs between runs of different sizes; None if none does."""
    largest = find_largest(others.values())
    verdicts = {
        name: agree_by_sample(some[name].unsqueeze(0), other.unsqueeze(0), bits, largest)
        for name, other in others.items()
    }
    return next((name for name, is_same in verdicts.items() if not is_same), None)


def find_largest(tensors: Iterable[Tensor]) -> float | Tensor:
    """The largest finite magnitude in them; on a device it stays there."""
    sizes = [t.detach().abs().nan_to_num(0.0, 0.0, 0.0).max() for t in tensors if t.numel()]
    place = next((size.device for size in sizes if not is_at_hand(size)), None)
    if place is None:
        return max(map(float, sizes), default=0.0)
    widest = max((size.dtype for size in sizes), key=lambda dtype: dtype.itemsize)
    return torch.stack([size.to(place, widest) for size in sizes]).max()


def _tolerance_across_sizes(tensor: Tensor, bits: int) -> float:
    """A factor or a shift is far larger."""
    return {64: 1e-8, 32: 1e-3}.get(min(bits, torch.finfo(tensor.dtype).bits), 0.1)


def has_digits(tensor: Tensor) -> bool:
    """Whether its entries are rounded: real or complex, not whole numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


def _is_within(left: Tensor, right: Tensor, tolerance: float) -> Verdict:
    """Whether entries differ by no more than rounding, relative to what they may be summed from."""
    left, right = left.detach(), right.detach()
    if not left.numel():
        return True
    if left.is_complex():
        left, right = torch.view_as_real(left), torch.view_as_real(right)
    ones, others = (t.double().reshape(-1, t.shape[-1] if t.ndim else 1) for t in (left, right))
    allowed = tolerance * (ones.abs() + _SUMMANDS * _scales(ones))
    apart = (ones - others).abs()
    same = ones.eq(others) | (ones.isnan() & others.isnan())
    return verdict_of((same | apart.le(allowed)).all())


def _scales(rows: Tensor) -> Tensor:
    """The smaller one of the means of an entry's row and of its column, without fills."""
    ordinary = _is_ordinary(rows)
    sizes = rows.abs().where(ordinary, 0.0)
    across, along = (
        sizes.sum(dim, keepdim=True) / ordinary.sum(dim, keepdim=True).clamp_min(1)
        for dim in (1, 0)
    )
    if rows.shape[1] == 1:
        return along.expand_as(rows)
    return across.expand_as(rows) if rows.shape[0] == 1 else torch.minimum(across, along)


def agree_throughout(
    left: Node, right: Node, same: Callable[[Tensor, Tensor], Verdict] = agree
) -> Verdict:
    """Whether all that was returned is the same."""
    ones, others = list(leaves(left)), list(leaves(right))
    return len(ones) == len(others) and all_of(map(same, ones, others))


def coarsest_bits(tensors: Iterable[Tensor]) -> int:
    """Of the least precise type among them."""
    return min((torch.finfo(t.dtype).bits for t in tensors if t.is_floating_point()), default=64)


def _is_ordinary(tensor: Tensor) -> Tensor:
    """Which entries are finite and not a large constant that was filled in."""
    magnitudes = tensor.abs()
    ordinary = magnitudes.isfinite()
    for _ in range(_FILLS):
        left = magnitudes.where(ordinary, -1.0)
        largest = left.max()
        next_largest = left.where(left < largest, -1.0).max()
        # Computed values hardly ever share the largest magnitude, and are not that far away.
        is_fill = (
            (left == largest).sum().ge(2) & next_largest.ge(0) & (largest > 1e3 * next_largest)
        )
        if is_at_hand(is_fill) and not is_fill:
            break
        ordinary = ordinary & (magnitudes.lt(largest) | ~is_fill)
    return ordinary
