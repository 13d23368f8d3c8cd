"""When and how it is verified that samples are independent and rows belong to whom they should."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.capture.independence import check_independence
from quietgrad.capture.layout import SiteKey
from quietgrad.capture.tape import Tape
from quietgrad.errors import EscapedGradientError, SampleMixingError

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


class Verifier:
    """Verifies a backward pass before it is used, in full whenever something about it is new."""

    def __init__(
        self,
        describe: Callable[[nn.Parameter], str],
        paused: Callable[[], AbstractContextManager[None]],
        *,
        thorough: bool,
    ) -> None:
        self._describe, self._paused, self._thorough = describe, paused, thorough
        self._known: set[Any] = set()

    def verify(self, tape: Tape, losses: Tensor) -> None:
        """Refuse losses that mix samples.

        In full when asked for, when the forward called functions or the graph has links that were
        not seen before, and when a layout is open. Where rows are picked by an index, which may
        pick others each time, one random split is probed each time. A verifier that is not
        thorough only settles layouts.
        """
        graph = summarize(losses, tape.batch, self._describe)
        kind = (frozenset(tape.functions), graph.links)
        if tape.batch == 1:
            return
        if not self._thorough:
            _settle_layouts(tape, losses)
        elif tape.verify or kind not in self._known or tape.is_unsettled():
            _probe_in_full(tape, losses)
            with self._paused():
                for call in tape.calls:
                    check_independence(call, list(splits(tape.batch)))
            self._known.add(kind)
        elif graph.selects_rows:
            for half in next(splits(tape.batch)):
                tape.probe(losses, half.to(losses.device))


def _settle_layouts(tape: Tape, losses: Tensor) -> None:
    """Split after split, until every operation's rows can belong to samples in one way only."""
    for halves in splits(tape.batch):
        if not tape.is_unsettled():
            return
        for half in halves:
            tape.probe(losses, half.to(losses.device))
    tape.accept_ambiguity()


def _probe_in_full(tape: Tape, losses: Tensor) -> None:
    everything = torch.ones(tape.batch, dtype=torch.bool, device=losses.device)
    whole = tape.probe(losses, everything)
    for halves in splits(tape.batch):
        parts = [tape.probe(losses, half.to(losses.device)) for half in halves]
        _check_additive(whole, parts)
    tape.accept_ambiguity()


def splits(batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Halves of the batch such that any two samples are on different sides of some split."""
    generator = torch.Generator()
    generator.seed()
    codes = torch.randperm(batch, generator=generator)
    for bit in range(math.ceil(math.log2(batch))):
        half = codes.bitwise_right_shift(bit).bitwise_and(1).bool()
        yield half, ~half


def _check_additive(
    whole: dict[SiteKey, tuple[float, float]], parts: list[dict[SiteKey, tuple[float, float]]]
) -> None:
    """Back-propagation is linear: both halves together give the whole, unless a hook meddles."""
    for key, (value, tolerance) in whole.items():
        found = sum(part.get(key, (0.0, 0.0))[0] for part in parts)
        if abs(found - value) > tolerance:
            raise SampleMixingError(
                f"samples are mixed in the backward pass: the gradients that two halves of the "
                f"batch send to {key} do not add up to those of the whole. A gradient hook scales "
                "or clips them together. Remove it; clipping is done per sample."
            )
