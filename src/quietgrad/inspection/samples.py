"""The samples of a batch, whatever shape it comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from quietgrad.capture.trees import map_tensors, tensors_in

Select = Callable[[Any, list[int]], Any]
"""Makes a batch of some samples of another, given by their places; a place may come twice."""


def count_samples(batch: Any) -> int:
    """The leading size that most tensors of a batch share; ValueError if there is none."""
    sizes = Counter(len(tensor) for tensor in tensors_in(batch) if tensor.ndim)
    if not sizes:
        raise ValueError(
            f"no tensor with samples in a batch of type {type(batch).__name__}: expected a tensor, "
            "or a tuple, list or dictionary of tensors that have one row for each sample"
        )
    return sizes.most_common(1)[0][0]


def select_rows(batch: Any, places: Sequence[int], count: int) -> Any:
    """The batch with rows of every tensor that has one for each of ``count`` samples."""

    def rows(tensor: Tensor) -> Tensor:
        if not tensor.ndim or len(tensor) != count:
            return tensor
        return tensor.detach()[list(places)]

    return map_tensors(rows, batch)
