"""Where samples meet: the first module whose outputs change though its inputs do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad.capture.trees import tensors_in
from quietgrad.inspection.subject import Subject


@dataclass(frozen=True)
class _Visit:
    """One run of one module."""

    path: str
    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass(frozen=True)
class Change:
    """One sample of the batch is replaced or removed.

    Attributes:
        place: of that sample.
        after: the places of the samples that are run instead of everyone.
        before_and_after: of every other sample, the row it had and the row it has now.
        word: what was done to it.
    """

    place: int
    after: list[int]
    before_and_after: list[tuple[int, int]]
    word: str

    @staticmethod
    def replacing(subject: Subject, place: int) -> Change:
        """Another sample takes its place."""
        others = subject.without(place)
        after = [others[0] if each == place else each for each in subject.everyone]
        return Change(place, after, [(each, each) for each in others], "replaced")

    @staticmethod
    def removing(subject: Subject, place: int) -> Change:
        """There is one sample less."""
        others = subject.without(place)
        return Change(place, others, [(each, row) for row, each in enumerate(others)], "removed")


def mixing_module(subject: Subject, change: Change) -> str | None:
    """The path of the module in which others' rows change with one sample; None if in none.

    Modules are asked in the order in which they finish, so the innermost is named.
    """
    before, after = _visits(subject, subject.everyone), _visits(subject, change.after)
    for one, other in zip(before, after, strict=False):
        if one.path != other.path:
            return None
        inputs = _rows_agree(one.inputs, other.inputs, change, subject)
        if inputs and not _rows_agree(one.outputs, other.outputs, change, subject):
            return one.path
    return None


def _visits(subject: Subject, places: Sequence[int]) -> list[_Visit]:
    model = subject.fresh_model()
    visits: list[_Visit] = []

    def watch(path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            visits.append(_Visit(path, _values((args, kwargs)), _values(output)))

        return hook

    handles = [
        module.register_forward_hook(watch(path), with_kwargs=True)
        for path, module in model.named_modules()
    ]
    with torch.no_grad():
        subject.losses(model, places)
    for handle in handles:
        handle.remove()
    return visits


def _values(tree: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors_in(tree)]


def _rows_agree(some: list[Tensor], others: list[Tensor], change: Change, subject: Subject) -> bool:
    pairs = list(zip(some, others, strict=False))
    return all(_same_rows(one, other, change, subject) for one, other in pairs)


def _same_rows(one: Tensor, other: Tensor, change: Change, subject: Subject) -> bool:
    """Whether there is a way to read the tensors in which those samples' rows are the same."""
    count, now = subject.count, len(change.after)
    tolerance = subject.tolerance.same_shape if count == now else subject.tolerance
    dims = [d for d, size in enumerate(one.shape) if size and size % count == 0]
    fitting = [d for d in dims if other.shape == _resized(one.shape, d, count, now)]
    if not fitting:
        return one.shape == other.shape  # no samples in it
    rows = [list(each) for each in zip(*change.before_and_after, strict=True)]
    for dim in fitting:
        left = one.movedim(dim, 0).reshape(count, -1)[rows[0]]
        right = other.movedim(dim, 0).reshape(now, -1)[rows[1]]
        if tolerance.agree(left, right):
            return True
    return False


def _resized(shape: torch.Size, dim: int, count: int, now: int) -> torch.Size:
    return torch.Size([*shape[:dim], shape[dim] // count * now, *shape[dim + 1 :]])
