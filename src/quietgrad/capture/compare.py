"""Whether two results are the same, but for how kernels round.

The tolerance is each entry's own. Relative to the largest entry it would be blind where some are
masked with -1e9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quietgrad.capture.layout import OutputRows, Placement
from quietgrad.capture.repetition import CallOutcome, ModelCall
from quietgrad.capture.trees import (
    Branch,
    Node,
    is_list_of,
    leaves,
    lists_of,
    map_tensors,
    tensors_in,
)

# Rounding errors of an entry near zero are those of what was added up to it.
_SUMMANDS = 4.0
_FILLS = 3
_INFO = {
    torch.finfo(d).bits: torch.finfo(d) for d in (torch.bfloat16, torch.float32, torch.float64)
}


def agree(left: Tensor, right: Tensor, bits: int = 64) -> bool:
    """Whether runs of the same size gave the same.

    Args:
        left: of one run.
        right: of the other.
        bits: of the least precise numbers that they were computed with.
    """
    if left.shape != right.shape:
        return False
    if not left.is_floating_point() or torch.equal(left, right):
        return torch.equal(left, right)
    # Kernels may round differently for other values elsewhere in the batch, but hardly more.
    info = min(torch.finfo(left.dtype), _INFO[bits], key=lambda each: each.bits)
    tolerance = info.eps * (2 if info.bits == 16 else 64)
    left, right = left.double(), right.double()
    scale = _typical(left[is_ordinary(left)])
    return torch.allclose(
        left, right, atol=_SUMMANDS * tolerance * scale, rtol=tolerance, equal_nan=True
    )


def agree_across_sizes(left: Tensor, right: Tensor, bits: int = 64) -> bool:
    """Whether runs of different sizes gave the same: kernels round far more differently then."""
    if left.squeeze().shape != right.squeeze().shape:
        return False
    # A factor or a shift is far larger still.
    tolerance = {64: 1e-8, 32: 1e-3}.get(min(bits, torch.finfo(left.dtype).bits), 0.1)
    left, right = left.squeeze().double(), right.squeeze().double()
    ordinary = is_ordinary(left)
    difference = (left - right)[ordinary].nan_to_num(0.0, 0.0, 0.0)
    if float(difference.norm()) > tolerance * float(left[ordinary].norm()):
        return False
    return torch.allclose(left[~ordinary], right[~ordinary], rtol=tolerance, equal_nan=True)


def coarsest_bits(tensors: Iterable[Tensor]) -> int:
    """Of the least precise type among them."""
    return min((torch.finfo(t.dtype).bits for t in tensors if t.is_floating_point()), default=64)


def is_ordinary(tensor: Tensor) -> Tensor:
    """Which entries are finite and not a large constant that was filled in."""
    magnitudes = tensor.abs()
    ordinary = magnitudes.isfinite()
    for _ in range(_FILLS):
        left = magnitudes[ordinary]
        if not left.numel():
            break
        largest = left.max()
        # Computed values hardly ever share the largest magnitude, and are not that far away.
        if int((left == largest).sum()) < 2 or largest <= 1e3 * _lower(left[left < largest]):
            break
        ordinary &= magnitudes < largest
    return ordinary


def _typical(values: Tensor) -> float:
    magnitudes = values.abs()
    magnitudes = magnitudes[magnitudes > 0]
    return float(magnitudes.median()) if magnitudes.numel() else 0.0


def _lower(magnitudes: Tensor) -> float:
    """The largest of the others; of nothing it is infinite: constants alone are ordinary."""
    return float(magnitudes.max()) if magnitudes.numel() else float("inf")


@dataclass(frozen=True)
class InputLayout:
    """One way to read the arguments: where the samples are, and which tensors are shared."""

    place: Placement
    batch: int
    folded: bool = False
    squares_are_shared: bool = False
    in_lists: bool = False

    def repeat(
        self,
        call: ModelCall,
        samples: Tensor,
        *,
        evaluating: bool = False,
        seed: int | None = None,
    ) -> CallOutcome:
        """The call with sample ``i`` replaced by ``samples[i]``, of which there may be fewer."""
        return call.repeat(self._chooser(samples), evaluating=evaluating, seed=seed)

    def _chooser(self, samples: Tensor) -> Callable[[Any], Any]:
        def from_list(entries: list[Any]) -> list[Any] | None:
            if not self.in_lists or not is_list_of(self.batch, entries):
                return None
            return [map_tensors(Tensor.clone, entries[place]) for place in samples.tolist()]

        return lambda tree: map_tensors(lambda x: self._choose(x, samples), tree, from_list)

    def _choose(self, tensor: Tensor, samples: Tensor) -> Tensor:
        exact = exact_dims(tensor, self.batch)
        if len(exact) > 1 and self.squares_are_shared:
            return tensor.clone()
        if self._fits(tensor):
            return select(tensor, samples, self.place, self.batch)
        if not exact or self._is_plainly_shared(tensor):
            return tensor.clone()
        return select(tensor, samples, Placement(exact[0], True), self.batch)

    def _is_plainly_shared(self, tensor: Tensor) -> bool:
        """Ids of positions often come as a batch of one; data with one step in front do not."""
        one_row = self.place.dim < tensor.ndim and tensor.shape[self.place.dim] == 1
        return one_row and not tensor.is_floating_point()

    def _fits(self, tensor: Tensor) -> bool:
        size = tensor.shape[self.place.dim] if self.place.dim < tensor.ndim else 0
        return size == self.batch or (self.folded and size > 0 and size % self.batch == 0)


def readings_of(call: ModelCall, batch: int) -> list[InputLayout]:
    """The most natural ones first."""
    tree = (call.args, call.kwargs)
    lists = list(lists_of(batch, tree))
    if not lists:
        return _of_tensors(call.arguments, batch)
    beside: list[Tensor] = []
    map_tensors(
        beside.append, tree, lambda entries: entries if is_list_of(batch, entries) else None
    )
    plain = _of_tensors(beside, batch) or [InputLayout(Placement(0, True), batch)]
    readings = [replace(reading, in_lists=True) for reading in plain]
    if all(_have_the_batch(entries, batch) for entries in lists):
        # As many modalities as samples, say: each entry holds all samples itself.
        readings = _of_tensors(call.arguments, batch) + readings
    return readings


def _have_the_batch(entries: list[Any], batch: int) -> bool:
    return all(exact_dims(tensor, batch) for tensor in tensors_in(entries))


def _of_tensors(arguments: list[Tensor], batch: int) -> list[InputLayout]:
    exact = [Placement(dim, True) for tensor in arguments for dim in exact_dims(tensor, batch)]
    folded = [place for tensor in arguments for place in folded_places(tensor, batch)]
    counts = [len(exact_dims(tensor, batch)) for tensor in arguments]
    readings = [InputLayout(place, batch) for place in exact]
    if 1 in counts and max(counts) > 1:
        readings += [InputLayout(place, batch, squares_are_shared=True) for place in exact]
    readings += [InputLayout(place, batch, folded=True) for place in folded]
    return list(dict.fromkeys(readings))


def select(tensor: Tensor, samples: Tensor, place: Placement, batch: int) -> Tensor:
    """The rows of some samples, in their order."""
    each = tensor.shape[place.dim] // batch
    rows = torch.arange(each * batch).view((batch, each) if place.major else (each, batch))
    chosen = rows[samples] if place.major else rows[:, samples]
    return tensor.index_select(place.dim, chosen.flatten().to(tensor.device))


def exact_dims(tensor: Tensor, batch: int) -> list[int]:
    """The dimensions of the size of the batch."""
    return [dim for dim, size in enumerate(tensor.shape) if size == batch]


def places_in(tensor: Tensor, batch: int) -> Iterator[Placement]:
    """Where the samples could be: dimensions of their number, then of a multiple of it."""
    yield from (Placement(dim, True) for dim in exact_dims(tensor, batch))
    yield from folded_places(tensor, batch)


def folded_places(tensor: Tensor, batch: int) -> list[Placement]:
    """Dimensions that could hold several rows of each sample, adjacent or apart."""
    multiples = [dim for dim, size in enumerate(tensor.shape) if size > batch and size % batch == 0]
    return [Placement(dim, major) for dim in multiples for major in (True, False)]


@dataclass(frozen=True)
class OutputComparison:
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
