"""How the arguments of a model can be read: where its samples are, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quietgrad.capture.layout import Placement
from quietgrad.capture.repetition import ModelCall, Outcome
from quietgrad.capture.trees import is_list_of, lists_of, map_tensors, tensors_in


@dataclass(frozen=True)
class Reading:
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
    ) -> Outcome:
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


def readings_of(call: ModelCall, batch: int) -> list[Reading]:
    """The most natural ones first."""
    tree = (call.args, call.kwargs)
    lists = list(lists_of(batch, tree))
    if not lists:
        return _of_tensors(call.arguments, batch)
    beside: list[Tensor] = []
    map_tensors(
        beside.append, tree, lambda entries: entries if is_list_of(batch, entries) else None
    )
    plain = _of_tensors(beside, batch) or [Reading(Placement(0, True), batch)]
    readings = [replace(reading, in_lists=True) for reading in plain]
    if all(_have_the_batch(entries, batch) for entries in lists):
        # As many modalities as samples, say: each entry holds all samples itself.
        readings = _of_tensors(call.arguments, batch) + readings
    return readings


def _have_the_batch(entries: list[Any], batch: int) -> bool:
    return all(exact_dims(tensor, batch) for tensor in tensors_in(entries))


def _of_tensors(arguments: list[Tensor], batch: int) -> list[Reading]:
    exact = [Placement(dim, True) for tensor in arguments for dim in exact_dims(tensor, batch)]
    folded = [place for tensor in arguments for place in folded_places(tensor, batch)]
    counts = [len(exact_dims(tensor, batch)) for tensor in arguments]
    readings = [Reading(place, batch) for place in exact]
    if 1 in counts and max(counts) > 1:
        readings += [Reading(place, batch, squares_are_shared=True) for place in exact]
    readings += [Reading(place, batch, folded=True) for place in folded]
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
