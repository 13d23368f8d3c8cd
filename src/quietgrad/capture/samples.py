"""Where the samples are in what a model is called with, and how to choose some of them."""

from __future__ import annotations

import copy
import dataclasses
from array import array
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.compare import (
    Node,
    attributes_of,
    is_list_of,
    leaves,
    lists_of,
    slots_of,
    tensors_in,
)
from quietgrad.capture.layout import Layout, counts_up, exact_layouts, folded_layouts
from quietgrad.capture.owners import OwnedLayout
from quietgrad.factors.membership import Membership

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_DEEPEST = 6


@dataclass(frozen=True, eq=False)
class Selection:
    """What a call is repeated with: its samples, some of them, or copies.

    Attributes:
        samples: of which sample of the call each is a copy.
        records: the same of their records.
        membership: of these.
        origin: of the records of the call.
    """

    samples: Tensor
    records: Tensor
    membership: Membership
    origin: Membership

    @staticmethod
    def of_everyone(membership: Membership) -> Selection:
        """All samples as they are."""
        return Selection.of_copies(torch.arange(membership.samples, device="cpu"), membership)

    @staticmethod
    def of_some(samples: Tensor, membership: Membership) -> Selection:
        """These samples, with all of their records."""
        records = membership.list_records(samples)
        return Selection(samples, records, membership.select(samples), membership)

    @staticmethod
    def of_copies(samples: Tensor, membership: Membership) -> Selection:
        """As many samples, of which some became others and kept their number of records."""
        return Selection(samples, membership.substitute(samples), membership, membership)

    @staticmethod
    def of_resized(counts: Sequence[int], membership: Membership) -> Selection:
        """All samples, with so many records: the first ones, or all in turn."""
        samples = torch.arange(membership.samples, device="cpu")
        records = membership.substitute(samples, counts)
        return Selection(samples, records, membership.resized(counts), membership)


@dataclass(frozen=True)
class InputLayout:
    """Where the samples are in the arguments of a call, and which tensors are shared by all.

    Sequences without tensors and arrays that are as long as the batch have an entry for each
    sample: lengths, words, labels.

    Attributes:
        main: of tensors.
        folded: whether tensors may have several rows for each sample.
        squares_are_shared: whether a tensor that is as large as the batch in two ways has none.
        in_lists: whether lists of tensors have an entry for each sample.
        has_sides: whether sequences without tensors and arrays have.
        shared: by id, parts of the arguments that were the same with other samples.
    """

    main: Layout
    folded: bool = False
    squares_are_shared: bool = False
    in_lists: bool = False
    has_sides: bool = True
    shared: frozenset[int] = frozenset()

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.main.batch

    def select(self, selection: Selection) -> Callable[[Any], Any]:
        """Replaces record ``i`` of arguments by the one that is chosen for it."""
        records, seen = selection.records, 0
        places = records.tolist()

        def choose(tree: Any) -> Any:
            nonlocal seen
            if id(tree) in self.shared:
                return copy_part(tree)
            if isinstance(tree, Tensor):
                seen += 1
                if _tells_owners(tree, selection.origin):
                    return selection.membership.owners.to(tree)
                return _as_leaf(self._select(tree.detach(), records, is_first=seen == 1), tree)
            if isinstance(tree, np.ndarray):
                return self._select_array(tree, places)
            if isinstance(tree, (list, tuple, deque, array)) and self._is_per_sample(tree):
                return _like(tree, [copy_part(tree[place]) for place in places])
            return None

        return lambda arguments: rebuild_arguments(arguments, choose)

    def _is_per_sample(self, entries: Any) -> bool:
        if len(entries) != self.batch or isinstance(entries, torch.Size):
            return False
        if next(tensors_in(entries), None) is None:
            return self.has_sides and not hasattr(entries, "_fields")
        return self.in_lists and is_list_of(self.batch, entries)

    def _select_array(self, array: Any, places: list[int]) -> Any:
        dims = [dim for dim, size in enumerate(array.shape) if size == self.batch]
        if not dims or not self.has_sides:
            return array.copy()
        return array.take(places, axis=self.main.dim if self.main.dim in dims else dims[0])

    def _select(self, tensor: Tensor, samples: Tensor, *, is_first: bool) -> Tensor:
        exact = exact_layouts(tensor, self.batch)
        # What comes first is data, whatever its shape; a mask or a matrix comes later.
        if len(exact) > 1 and self.squares_are_shared and not is_first:
            return tensor.clone()
        size = tensor.shape[self.main.dim] if self.main.dim < tensor.ndim else 0
        if size == self.batch or (self.folded and size > 0 and size % self.batch == 0):
            return self.main.select(tensor, samples)
        # Ids of positions often come as a batch of one; data with one step in front do not.
        is_shared = size == 1 and not tensor.is_floating_point()
        return exact[0].select(tensor, samples) if exact and not is_shared else tensor.clone()


@dataclass(frozen=True)
class JoinedInput:
    """Arguments in which samples are rows of one tensor: packed, joined into one graph.

    Attributes:
        main: of tensors with one entry for each sample.
        rows: by number among the tensors, whose the rows are.
        is_complete: whether nothing else tells how they are joined. Otherwise (lengths, offsets,
            edges) that stays: rows of a sample get the values of rows of another one, and there are
            always as many samples.
    """

    main: Layout
    rows: Mapping[int, OwnedLayout]
    is_complete: bool = False

    @staticmethod
    def of(
        arguments: Arguments, rows: Mapping[int, OwnedLayout], membership: Membership
    ) -> JoinedInput:
        """Arguments in which these rows are the samples', by number among the tensors."""
        batch = membership.samples
        is_complete = membership.is_plain and all(
            rows[number].is_in_order or len(tensor) == batch
            if number in rows
            else not _tells_how_samples_are_joined(tensor, batch)
            for number, tensor in enumerate(list_tensors(arguments))
        )
        return JoinedInput(Layout(batch), rows, is_complete)

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.main.batch

    def select(self, selection: Selection) -> Callable[[Any], Any]:
        """Gives rows of sample ``i`` the values of rows of the one that is chosen for it."""
        samples, seen = selection.samples, 0

        def choose(tree: Any) -> Any:
            nonlocal seen
            if isinstance(tree, np.ndarray):
                is_side = self.is_complete and tree.ndim > 0 and len(tree) == self.batch
                return tree[samples.numpy()] if is_side else tree.copy()
            if not isinstance(tree, Tensor):
                return self._select_side(tree, samples)
            number, seen = seen, seen + 1
            return _as_leaf(self._select(number, tree.detach(), samples), tree)

        def rebuild_all(arguments: Arguments) -> Arguments:
            if len(samples) != self.batch and not self.is_complete:
                raise ValueError("samples that are joined cannot be left out")
            return rebuild_arguments(arguments, choose)

        return rebuild_all

    def _select_side(self, tree: Any, samples: Tensor) -> Any:
        """Entries of a plain list with one for each sample; None for anything else."""
        is_list = isinstance(tree, (list, tuple)) and not hasattr(tree, "_fields")
        if not (self.is_complete and is_list and len(tree) == self.batch):
            return None
        if isinstance(tree, torch.Size) or next(tensors_in(tree), None) is not None:
            return None
        return _like(tree, [tree[place] for place in samples.tolist()])

    def _select(self, number: int, tensor: Tensor, samples: Tensor) -> Tensor:
        rows = self.rows.get(number)
        if not self.is_complete:
            return tensor.clone() if rows is None else rows.replace(tensor, samples)
        if tensor.ndim and len(tensor) == self.batch:
            return tensor[samples.to(tensor.device)]
        return tensor.clone() if rows is None else rows.select(tensor, samples)


def _tells_how_samples_are_joined(tensor: Tensor, batch: int) -> bool:
    """Whether it may hold offsets, lengths or edges, and not one entry for each sample."""
    if tensor.is_floating_point() or not tensor.ndim:
        return False
    if len(tensor) != batch:
        return True
    # Places of first rows begin with zero and do not decrease.
    return tensor.ndim == 1 and not tensor[0] and bool((tensor.diff() >= 0).all())


def _tells_owners(tensor: Tensor, membership: Membership) -> bool:
    """Whether it says which records belong together, as the engine has told the user."""
    if not membership.is_told or tensor.dtype != torch.int64:
        return False
    owners = membership.owners
    return tensor.shape == owners.shape and torch.equal(tensor.cpu(), owners)


def _as_leaf(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor.requires_grad_(like.requires_grad)


def copy_tensor(tensor: Tensor) -> Tensor:
    """Its values, cut off from its graph; it requires gradients if the original does."""
    return _as_leaf(tensor.detach().clone(), tensor)


def copy_part(entry: Any) -> Any:
    """A part of arguments whose tensors nobody else can write to."""
    return rebuild(entry, lambda tree: copy_tensor(tree) if isinstance(tree, Tensor) else None)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a call: by place, and by name."""


def rebuild_arguments(arguments: Arguments, choose: Callable[[Any], Any]) -> Arguments:
    """Each of them by itself: there may be as many as there are samples."""
    args, kwargs = arguments
    by_name = {name: rebuild(value, choose) for name, value in kwargs.items()}
    return tuple(rebuild(value, choose) for value in args), by_name


def copy_arguments(arguments: Arguments) -> Arguments:
    """Arguments whose tensors, arrays and containers nobody else can write to.

    A tensor that is given twice is given twice.
    """
    copies = dict[int, Tensor]()

    def own(part: Any) -> Any:
        if isinstance(part, Tensor):
            if id(part) not in copies:
                copies[id(part)] = copy_tensor(part)
            return copies[id(part)]
        return part.copy() if isinstance(part, np.ndarray) else None

    return rebuild_arguments(arguments, own)


def change_values(arguments: Arguments, *, scale: int) -> Arguments:
    """Another sample, made of the values of this one in reverse."""

    def change(part: Any) -> Any:
        if not isinstance(part, Tensor):
            is_row = isinstance(part, (list, np.ndarray)) and next(tensors_in(part), None) is None
            return part[::-1] if is_row else None
        changed = part.detach().flatten().flip(0).view(part.shape)
        # Ids must stay valid; zero is one of them.
        changed = changed * scale if part.is_floating_point() or not scale else changed
        return changed.requires_grad_(part.requires_grad)

    return rebuild_arguments(arguments, change)


def rebuild(tree: Any, choose: Callable[[Any], Any], depth: int = 0) -> Any:
    """A structure of containers and plain objects with parts replaced.

    Args:
        tree: the structure.
        choose: what becomes of a part as a whole; None where its own parts are gone through.
        depth: of the part in the structure.
    """
    if type(tree) in _PLAIN or depth > _DEEPEST:
        return tree
    chosen = choose(tree)
    if chosen is not None or isinstance(tree, (Tensor, np.ndarray)):
        return tree if chosen is None else chosen
    if isinstance(tree, torch.Size):
        return tree
    if isinstance(tree, (list, tuple)):
        return _like(tree, [rebuild(child, choose, depth + 1) for child in tree])
    if isinstance(tree, MutableMapping):
        with suppress(Exception):  # one that cannot be copied or written
            result = copy.copy(tree)
            for key, child in list(tree.items()):
                result[key] = rebuild(child, choose, depth + 1)
            return result
        return tree
    if isinstance(tree, MethodType) and not isinstance(tree.__self__, nn.Module):
        return MethodType(tree.__func__, rebuild(tree.__self__, choose, depth + 1))
    if isinstance(tree, FunctionType):
        return _rebuild_function(tree, choose, depth)
    if isinstance(tree, partial):
        inner = rebuild((tree.func, tree.args, dict(tree.keywords)), choose, depth + 1)
        return partial(inner[0], *inner[1], **inner[2])
    return _rebuild_object(tree, choose, depth)


def _rebuild_function(function: FunctionType, choose: Callable[[Any], Any], depth: int) -> Any:
    """One that closes over other values."""
    if not function.__closure__:
        return function
    cells = []
    for cell in function.__closure__:
        try:
            cells.append(CellType(rebuild(cell.cell_contents, choose, depth + 1)))
        except ValueError:  # an empty one
            cells.append(cell)
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _rebuild_object(value: Any, choose: Callable[[Any], Any], depth: int) -> Any:
    is_fields = dataclasses.is_dataclass(value) and not isinstance(value, type)
    held = attributes_of(value)
    if not held or not (is_fields or hasattr(value, "__dict__") or slots_of(value)):
        return value
    try:
        instance = copy.copy(value)
    except Exception:  # it may refuse to be copied
        instance = object.__new__(type(value))
    if instance is value:
        return value
    for name, child in held.items():
        with suppress(AttributeError, TypeError):
            object.__setattr__(instance, name, rebuild(child, choose, depth + 1))
    return instance


def _like(entries: Any, children: list[Any]) -> Any:
    if isinstance(entries, array):
        return array(entries.typecode, children)
    if hasattr(entries, "_fields"):
        return type(entries)(*children) if len(children) == len(entries._fields) else children
    with suppress(Exception):
        return type(entries)(children)
    return children


def list_input_layouts(arguments: Arguments, batch: int) -> list[InputLayout]:
    """Those that are possible for these arguments, the most natural ones first."""
    each = (*arguments[0], *arguments[1].values())
    lists = [entries for argument in each for entries in lists_of(batch, argument)]
    tensors = list_tensors(arguments)
    if not lists:
        found = _of_tensors(tensors, batch)
        if not found and _has_sides(arguments, batch):
            found = [InputLayout(Layout(batch))]
        return found
    inside = {id(tensor) for entries in lists for tensor in tensors_in(entries)}
    beside = [tensor for tensor in tensors if id(tensor) not in inside]
    plain = _of_tensors(beside, batch) or [InputLayout(Layout(batch))]
    layouts = [replace(layout, in_lists=True) for layout in plain]
    if all(exact_layouts(tensor, batch) for entries in lists for tensor in tensors_in(entries)):
        # As many modalities as samples, say: each entry holds all samples itself.
        layouts = _of_tensors(tensors, batch) + layouts
    return layouts


def list_tensors(arguments: Arguments) -> list[Tensor]:
    """Also those in attributes of plain objects."""
    found: list[Tensor] = []

    def note(part: Any) -> None:
        if isinstance(part, Tensor):
            found.append(part)

    rebuild_arguments(arguments, note)
    return found


def _has_sides(arguments: Arguments, batch: int) -> bool:
    """Whether a sequence without tensors, or an array, is as long as the batch."""
    sides = []

    def note(part: Any) -> None:
        is_side = isinstance(part, (list, tuple, np.ndarray)) and not isinstance(part, torch.Size)
        if is_side and len(part) == batch:
            sides.append(part)

    rebuild_arguments(arguments, note)
    return bool(sides)


def _of_tensors(arguments: list[Tensor], batch: int) -> list[InputLayout]:
    by_tensor = [exact_layouts(tensor, batch) for tensor in arguments]
    exact = [layout for layouts in by_tensor for layout in layouts]
    folded = [layout for tensor in arguments for layout in folded_layouts(tensor, batch)]
    counts = [len(layouts) for layouts in by_tensor]
    found = [InputLayout(layout) for layout in exact]
    if 1 in counts and max(counts) > 1:
        found += [InputLayout(layout, squares_are_shared=True) for layout in exact]
    found += [InputLayout(layout, folded=True) for layout in folded]
    return list(dict.fromkeys(found))


def list_frozen_layouts(
    layouts: Sequence[InputLayout], arguments: Sequence[Tensor], returned: Node
) -> list[InputLayout]:
    """Of a call without gradients, of which no probe tells where the samples are.

    In the first dimension, if they can be there; otherwise in one that is not the last of what it
    was found in. A frozen part may be called with some of the samples: as many as what it returns
    has rows, if something that it was given has as many.
    """
    found = [each for each in layouts if not each.main.dim and not each.folded] or [
        each for each in layouts if _is_before_features(arguments, each.main)
    ]
    if found:
        return found
    given = {len(tensor) for tensor in arguments if tensor.ndim}
    rows = (len(tensor) for tensor in leaves(returned) if tensor.ndim)
    count = next((count for count in rows if count in given), 1)
    return [InputLayout(Layout(count))] if count > 1 else []


def _is_before_features(arguments: Sequence[Tensor], layout: Layout) -> bool:
    """Whether the dimension is not the last one of what it was found in."""
    sizes = [t.shape for t in arguments if t.ndim > layout.dim]
    return any(len(s) > layout.dim + 1 and s[layout.dim] % layout.batch == 0 for s in sizes)


def has_joined_rows(arguments: Arguments, batch: int) -> bool:
    """Whether some tensor has rows for all samples, but no dimension as long as the batch.

    A mask or a table of positions beside the samples has sizes that they have, too.
    """
    tensors = list_tensors(arguments)
    beside = {size for t in tensors if exact_layouts(t, batch) for size in t.shape}
    return any(
        tensor.shape[layout.dim] not in beside and not counts_up(tensor)
        for tensor in tensors
        if not exact_layouts(tensor, batch)
        for layout in folded_layouts(tensor, batch)
        if layout.dim == 0 or layout.dim < tensor.ndim - 1
    )
