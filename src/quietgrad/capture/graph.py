"""Reading the autograd graph behind the losses before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.errors import EscapedGradientError

# Operations that pick rows by an index computed at run time: which rows go where may differ from
# batch to batch though the graph looks the same.
_SELECTIONS = (
    "Index",
    "Gather",
    "Scatter",
    "MaskedSelect",
    "MaskedScatter",
    "Take",
    "Sort",
    "Topk",
    "Unique",
    "Put",
)


@dataclass(frozen=True)
class GraphSummary:
    """What kinds of nodes a graph has and how they follow each other, whatever their number."""

    links: frozenset[tuple[str, ...]]
    selects_rows: bool


def summarize(losses: Tensor, batch: int, describe: Callable[[nn.Parameter], str]) -> GraphSummary:
    """Walk the graph; refuse it if an ordinary gradient would reach a parameter."""
    links: set[tuple[str, ...]] = set()
    selects = False
    for node in _nodes(losses):
        _refuse_parameter(node, describe)
        children = [child for child, _ in node.next_functions if child is not None]
        links.add((_label(node, batch), *(_label(child, batch) for child in children)))
        selects = selects or (_name(node).startswith(_SELECTIONS) and not _keeps_rows(node))
    return GraphSummary(frozenset(links), selects)


def _nodes(losses: Tensor) -> Iterator[Any]:
    seen = {losses.grad_fn}
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


def _name(node: Any) -> str:
    return type(node).__name__


def _refuse_parameter(node: Any, describe: Callable[[nn.Parameter], str]) -> None:
    variable = getattr(node, "variable", None)
    if isinstance(variable, nn.Parameter):
        raise EscapedGradientError(
            f"{describe(variable)} would receive an ordinary gradient: it is used outside the "
            "model's forward (in the loss, or through model.forward(...) instead of model(...)) or "
            "inside something that hides from the capture, the model ran in eval mode, or it "
            "belongs to a criterion and not to the model. Use parameters only inside a forward "
            "called as model(...), after model.train()."
        )


def _label(node: Any, batch: int) -> str:
    """A node's name; with its index where it takes one sample out, since the order may change."""
    name = _name(node)
    if name != "SelectBackward0" or node._saved_dim != 0:
        return name
    takes_sample = node._saved_self_sym_sizes[0] == batch
    return f"{name}[{node._saved_index}]" if takes_sample else name


def _keeps_rows(node: Any) -> bool:
    """Whether an index leaves the first dimension in order: ``x[arange(B), last]``, ``x[:, i]``."""
    if _name(node) != "IndexBackward0":
        return False
    first = node._saved_indices[0]
    if first is None:
        return True
    rows = torch.arange(node._saved_self_sym_sizes[0], device=first.device)
    return first.dtype == torch.int64 and first.shape == rows.shape and torch.equal(first, rows)
