"""What a model returned in two runs, compared sample by sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from quietgrad.capture.agreement import agree, agree_across_sizes
from quietgrad.capture.layout import Placement
from quietgrad.capture.outputs import OutputRows
from quietgrad.capture.readings import places_in, select
from quietgrad.capture.trees import Branch, Node, leaves


@dataclass(frozen=True)
class Comparison:
    """Compares a run of ``batch`` samples with one of ``count``, of which some are the same.

    Args:
        known: what probes have found out about each output of the call.
        batch: how many samples the first run had.
        count: how many the second had.
        old: samples of the first run.
        new: the same ones, by their places in the second.
        bits: of the least precise numbers that the model computes with.
    """

    known: Sequence[OutputRows]
    batch: int
    count: int
    old: Tensor
    new: Tensor
    bits: int = 64

    def holds(self, before: Node, after: Node) -> bool:
        """Whether these samples' outputs are the same, in some reading of each output."""
        rows = rows_of(before, self.known)
        return self._same(before, after, rows)

    def _same(self, before: Node, after: Node, rows: list[OutputRows | None]) -> bool:
        if isinstance(before, Tensor) or isinstance(after, Tensor):
            if isinstance(before, Tensor) and isinstance(after, Tensor):
                return self._same_rows(before, after, rows[0])
            return False
        parts = _divided(before, rows)
        if self._is_one_for_each(before, after, parts):
            if self._same_entries(before, after):
                return True
            if any(known is not None and known.was_reached for known in rows):
                return False  # probes have told that each sample has its own
        if len(before.children) != len(after.children):
            return False
        pairs = zip(before.children, after.children, parts, strict=True)
        return all(self._same(one, other, part) for one, other, part in pairs)

    def _same_rows(self, before: Tensor, after: Tensor, rows: OutputRows | None) -> bool:
        places = allowed_places(before, rows, self.batch)
        if self.count != self.batch:
            return self._same_of_fewer(before, after, rows, places)
        if before.shape != after.shape:
            return False
        if self._is_aside(rows) and torch.equal(before, after):
            return True  # a table, with no samples in it
        return not places or any(
            agree(
                self._old_rows(before, place),
                select(after, self.new, place, self.count),
                self.bits,
            )
            for place in places
        )

    def _is_aside(self, rows: OutputRows | None) -> bool:
        """Whether no loss can send it gradients, as it can to other outputs."""
        probed = any(known.is_probed for known in self.known)
        return probed and rows is not None and not rows.is_probed

    def _same_of_fewer(
        self, before: Tensor, after: Tensor, rows: OutputRows | None, places: list[Placement]
    ) -> bool:
        if not places or not before.is_floating_point():
            return True
        if before.shape == after.shape and (rows is None or not rows.was_reached):
            return True  # a table, of a size that is a multiple of the batch by chance
        return any(
            agree_across_sizes(self._old_rows(before, place), after, self.bits) for place in places
        )

    def _old_rows(self, before: Tensor, place: Placement) -> Tensor:
        return select(before, self.old, place, self.batch)

    def _is_one_for_each(
        self, before: Branch, after: Branch, parts: list[list[OutputRows | None]]
    ) -> bool:
        lists = before.is_list and after.is_list and len(after.children) == self.count
        return lists and _has_one_for_each(before, parts, self.batch)

    def _same_entries(self, before: Branch, after: Branch) -> bool:
        same = partial(agree if self.count == self.batch else _agree_of_fewer, bits=self.bits)
        return all(
            same_throughout(before.children[one], after.children[other], same)
            for one, other in zip(self.old.tolist(), self.new.tolist(), strict=True)
        )


def allowed_places(tensor: Tensor, rows: OutputRows | None, batch: int) -> list[Placement]:
    """Where the samples can be in an output: as probes of the losses left it, if they did."""
    return [p for p in places_in(tensor, batch) if rows is None or rows.allows(p, batch)]


def tells_apart(node: Node, rows: list[OutputRows | None], batch: int) -> bool:
    """Whether samples have their own part of something that losses can depend on."""
    if isinstance(node, Tensor):
        known = rows[0]
        return known is None or (known.is_probed and bool(allowed_places(node, known, batch)))
    parts = _divided(node, rows)
    if _has_one_for_each(node, parts, batch) and any(k is None or k.is_probed for k in rows):
        return True
    return any(tells_apart(*pair, batch) for pair in zip(node.children, parts, strict=True))


def _has_one_for_each(node: Branch, parts: list[list[OutputRows | None]], batch: int) -> bool:
    """Whether it is a list of one entry for each sample, as far as probes can tell."""
    return (
        node.is_list
        and len(node.children) == batch
        and all(
            known is None or known.may_belong_to(sample)
            for sample, part in enumerate(parts)
            for known in part
        )
    )


def rows_of(node: Node, known: Sequence[OutputRows]) -> list[OutputRows | None]:
    """What is known of each tensor that was returned, if it is as many as in the call itself."""
    count = sum(1 for _ in leaves(node))
    return list(known) if len(known) == count else [None] * count


def _divided(node: Branch, rows: list[OutputRows | None]) -> list[list[OutputRows | None]]:
    parts, start = [], 0
    for child in node.children:
        end = start + sum(1 for _ in leaves(child))
        parts.append(rows[start:end])
        start = end
    return parts


def _agree_of_fewer(left: Tensor, right: Tensor, bits: int) -> bool:
    return not left.is_floating_point() or agree_across_sizes(left, right, bits)


def same_throughout(
    left: Node, right: Node, same: Callable[[Tensor, Tensor], bool] = agree
) -> bool:
    """Whether all that was returned is the same."""
    ones, others = list(leaves(left)), list(leaves(right))
    return len(ones) == len(others) and all(map(same, ones, others))
