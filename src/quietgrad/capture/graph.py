"""The graph behind the losses, before anything is back-propagated: its kind, and its selections."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from quietgrad.capture.tape import stray_gradient
from quietgrad.errors import EscapedGradientError, LossError

if TYPE_CHECKING:
    from quietgrad.capture.tape import Tape

# Operations that pick rows by an index computed at run time: which rows go where may differ from
# batch to batch though the graph looks the same.
_SELECTIONS = tuple(
    "Index Gather Scatter MaskedSelect MaskedScatter Take Sort Topk Unique Put SegmentReduce "
    "EmbeddingBag PackPadded Nested Sparse Repeat".split()
)

Links = frozenset[tuple[str, ...]]
"""What kinds of nodes a graph has and how they follow each other, whatever their number."""


class Graph(NamedTuple):
    """What is known of a graph before anything is back-propagated.

    Attributes:
        links: its kind.
        selects_rows: whether rows are picked by numbers that may be others in the next batch.
        orders_rows: whether rows are picked at all; a repeat may pick others.
    """

    links: Links
    selects_rows: bool
    orders_rows: bool


def summarize_graph(losses: Tensor, tape: Tape, describe: Callable[[nn.Parameter], str]) -> Graph:
    """Look at all nodes; refused if a parameter would get a gradient."""
    batch = tape.batch
    if losses.grad_fn is None:
        raise LossError("the losses are a leaf tensor: they were not computed by the model.")
    links: set[tuple[str, ...]] = set()
    selects = orders = False
    seen, stack = {losses.grad_fn}, [losses.grad_fn]
    while stack:  # in one pass: a graph is asked for its nodes in every step
        node: Any = stack.pop()
        kind = _kind_of(type(node))  # type: ignore[arg-type]
        if kind.is_leaf:
            _refuse_leaf(node, tape, describe)
        elif kind.is_custom:
            _refuse_stray(node, tape)
        label = kind.name
        if kind.has_details:
            label = _label(node, batch)
            is_selection = _selects_rows(node)
            orders = orders or is_selection or label.endswith(")")
            selects = selects or (is_selection and not _keeps_rows(node, tape))
        labels = [label]
        for child, nr in node.next_functions:
            if child is not None:
                kind = _kind_of(type(child))  # type: ignore[arg-type]
                labels.append(_label(child, batch, nr) if kind.has_label else kind.name)
                if child not in seen:
                    seen.add(child)
                    stack.append(child)
        links.add(tuple(labels))
    return Graph(frozenset(links), selects, orders)


class _Kind(NamedTuple):
    """What all nodes of a type have in common.

    Attributes:
        name: the type's.
        is_leaf: whether they give a gradient to a tensor.
        is_custom: whether they are of a function written in Python.
        has_details: whether they are told apart, or may pick rows.
        has_label: whether they are told apart.
    """

    name: str
    is_leaf: bool
    is_custom: bool
    has_details: bool
    has_label: bool


@lru_cache(maxsize=1024)  # each custom function has a type of its own
def _kind_of(kind: type) -> _Kind:
    name = kind.__name__
    is_picking = name.startswith(_SELECTIONS) or name in _PICKING
    is_custom = issubclass(kind, torch.autograd.function.BackwardCFunction)
    has_label = name in _DETAILS
    return _Kind(name, name == "AccumulateGrad", is_custom, is_picking or has_label, has_label)


def list_nodes(losses: Tensor, ends: Collection[Any] = ()) -> Iterator[Any]:
    """All nodes of a graph, but for those that are only behind its ``ends``."""
    seen = {losses.grad_fn, *ends}
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


def list_edges(losses: Tensor, ends: Collection[Any]) -> set[tuple[Any, int]]:
    """Where a graph meets its ``ends``: which outputs of these nodes it is made of directly."""
    found = {(losses.grad_fn, losses.output_nr)}
    found |= {edge for node in list_nodes(losses, ends) for edge in node.next_functions}
    return {(node, number) for node, number in found if node in ends}


def refuse_scaler(losses: Tensor, ends: Collection[Any]) -> None:
    """Refuse losses that a ``GradScaler`` scaled, between the model's outputs and here.

    It leaves a product with a tensor of one float32 number. Whether that is one's scale is asked of
    all that there are, or told by its value if the scaler is gone.
    """
    for node in list_nodes(losses, ends):
        if type(node).__name__ != "MulBackward0":
            continue
        factor = node._saved_other
        if factor is None or factor.ndim or factor.dtype != torch.float32 or factor.requires_grad:
            continue
        value = float(factor)
        if value == _FIRST_SCALE or any(scale == value for scale in _list_scales()):
            raise LossError(
                f"the losses were multiplied by {value:g}, the scale of a torch.amp.GradScaler: it "
                "changes what is clipped, and a scale that follows overflows of the data is "
                "private itself. Remove the scaler, and pass a constant to the engine: "
                "PrivacyEngine(..., loss_scale=1024.0), which is divided out before clipping. "
                "bfloat16 needs none."
            )


_FIRST_SCALE = 2.0**16


def _list_scales() -> Iterator[float]:
    for each in gc.get_objects():
        if issubclass(type(each), torch.amp.GradScaler) and each.is_enabled():
            yield each.get_scale()


def _refuse_leaf(node: Any, tape: Tape, describe: Callable[[nn.Parameter], str]) -> None:
    """What would receive a gradient that is neither clipped nor covered by noise."""
    variable = getattr(node, "variable", None)
    if variable is None or variable is tape.token:
        return
    if not isinstance(variable, nn.Parameter):
        if tape.is_argument(variable) or (variable.ndim and len(variable) == tape.batch):
            return  # data: nothing is sent there
        raise EscapedGradientError(
            f"a tensor of shape {tuple(variable.shape)} that requires gradients is no parameter of "
            "the model: its gradient would be the sum over all samples, without clipping and "
            "without noise. Register it in the model as nn.Parameter and use it inside the "
            "forward, or detach it."
        )
    raise EscapedGradientError(
        f"{describe(variable)} would receive an ordinary gradient: it is used outside the "
        "model's forward (in the loss, or through model.forward(...) instead of model(...)) or "
        "inside something that hides from the capture, the model ran in eval mode, or it "
        "belongs to a criterion and not to the model. Use parameters only inside a forward "
        "called as model(...), after model.train()."
    )


def _refuse_stray(node: Any, tape: Tape) -> None:
    """A graph from another recording: its parameters would get nothing from this one."""
    site = getattr(node, "site", None)
    if site is not None and not tape.owns(site):
        raise stray_gradient(f"{site.parameters} ({site.key})")


def _label(node: Any, batch: int, output: int = 0) -> str:
    """A node's name, with the place of the rows that it takes, or the order that it puts them in.

    Samples may be taken out one by one in any order, though the graph looks the same otherwise.
    """
    name = type(node).__name__
    details = _DETAILS.get(name)
    if details is None:
        return name
    values = tuple(getattr(node, detail) for detail in details)
    if name in _OF_ROWS:
        sizes = getattr(node, "_saved_self_sym_sizes", None)
        if not _is_row_dim(node._saved_dim, sizes) and not _has_room(node, sizes, batch):
            return name
        values = (*values, output)
    return f"{name}{values}"


_DETAILS = {
    "SelectBackward0": ("_saved_index",),
    "SplitBackward0": ("_saved_split_size",),
    "UnbindBackward0": (),
    "FlipBackward0": ("_saved_dims",),
    "RollBackward0": ("_saved_dims", "_saved_shifts"),
    "PermuteBackward0": ("_saved_dims",),
}
_OF_ROWS = ("SelectBackward0", "SplitBackward0", "UnbindBackward0")


def _is_row_dim(dim: int, sizes: Sequence[int] | None) -> bool:
    """Whether this is the first dimension, but for those of size one."""
    if sizes is None:
        return dim == 0
    first = next((place for place, size in enumerate(sizes) if size != 1), 0)
    return dim in (first, 2**64 - len(sizes) + first)  # negative ones are given without a sign


def _has_room(node: Any, sizes: Sequence[int] | None, batch: int) -> bool:
    """Whether the dimension that it takes parts of may hold the samples."""
    if sizes is None:
        size = len(node._input_metadata)
    else:
        size = sizes[node._saved_dim if node._saved_dim < 2**63 else node._saved_dim - 2**64]
    # Samples are hardly in two dimensions: not here if the first one is as long as the batch.
    is_elsewhere = sizes is not None and sizes[0] == batch
    return bool(size) and size % batch == 0 and not is_elsewhere


_PICKING = ("SliceBackward0", "SplitWithSizesBackward0")


def _selects_rows(node: Any) -> bool:
    """Whether a node picks rows by numbers that may be others each time."""
    name = type(node).__name__
    if name.startswith(_SELECTIONS):
        return True
    if name == "SliceBackward0":
        sizes = node._saved_self_sym_sizes
        if not _is_row_dim(node._saved_dim, sizes):
            return False
        rows = next((size for size in sizes if size != 1), 1)
        return bool(node._saved_start) or not rows <= node._saved_end < 2**63
    if name == "SplitWithSizesBackward0":
        is_even = len(set(node._saved_split_sizes)) == 1
        return _is_row_dim(node._saved_dim, node._saved_self_sym_sizes) and not is_even
    return False


def _keeps_rows(node: Any, tape: Tape) -> bool:
    """Whether an index leaves the first dimension in order: ``x[arange(B), last]``, ``x[:, i]``."""
    if type(node).__name__ != "IndexBackward0":
        return False
    first = node._saved_indices[0]
    if first is None:
        return True
    count: int = node._saved_self_sym_sizes[0]
    if first.dtype != torch.int64 or first.shape != (count,):
        return False
    if tape.provenance.counts_up(first):
        return True
    return torch.equal(first, torch.arange(count, device=first.device))
