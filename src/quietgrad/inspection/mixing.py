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


def mixing_module(subject: Subject, replaced: int) -> str | None:
    """The path of the module in which others' rows change with one sample; None if in none.

    Modules are asked in the order in which they finish, so the innermost is named.
    """
    others = subject.without(replaced)
    with_it = subject.everyone
    instead = [others[0] if place == replaced else place for place in with_it]
    before, after = _visits(subject, with_it), _visits(subject, instead)
    for one, other in zip(before, after, strict=False):
        if one.path != other.path:
            return None
        inputs = _rows_agree(one.inputs, other.inputs, others, subject)
        if inputs and not _rows_agree(one.outputs, other.outputs, others, subject):
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


def _rows_agree(
    some: list[Tensor], others: list[Tensor], places: Sequence[int], subject: Subject
) -> bool:
    pairs = list(zip(some, others, strict=False))
    return all(_same_rows(one, other, places, subject) for one, other in pairs)


def _same_rows(one: Tensor, other: Tensor, places: Sequence[int], subject: Subject) -> bool:
    """Whether there is a way to read the tensors in which those samples' rows are the same."""
    tolerance = subject.tolerance.same_shape
    if one.shape != other.shape:
        return False
    dims = [d for d, size in enumerate(one.shape) if size and size % subject.count == 0]
    if not dims:
        return True  # no samples in it
    for dim in dims:
        left, right = (t.movedim(dim, 0).reshape(subject.count, -1) for t in (one, other))
        if tolerance.agree(left[list(places)], right[list(places)]):
            return True
    return False
