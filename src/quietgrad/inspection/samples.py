"""The samples of a batch, whatever shape it comes in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietgrad.capture.trees import map_tensors, tensors_in

Select = Callable[[Any, list[int]], Any]
"""Makes a batch of some samples of another, given by their places; a place may come twice."""


def count_samples(batch: Any) -> int:
    """The number of samples in a list of them, or of rows in tensors; ValueError if there is none.

    Where tensors differ in that, it is the size that most of them share.
    """
    if _is_list_of_samples(batch):
        return len(batch)
    held = [*tensors_in(batch), *_arrays_in(batch)]
    sizes = Counter(len(each) for each in held if each.ndim)
    if not sizes:
        raise ValueError(
            f"no tensor with samples in a batch of type {type(batch).__name__}: expected a tensor, "
            "a tuple, list or dictionary of tensors that have one row for each sample, or a list "
            "of samples. For any other batch pass select=, a function of the batch and a list of "
            "places that makes a batch of these samples"
        )
    return sizes.most_common(1)[0][0]


def select_rows(batch: Any, places: Sequence[int], count: int) -> Any:
    """The batch with rows of everything that has one for each of ``count`` samples."""

    def rows(tensor: Tensor) -> Tensor:
        if not tensor.ndim or len(tensor) != count:
            return tensor
        return tensor.detach()[list(places)]

    def others(tree: Any) -> Any:
        if isinstance(tree, np.ndarray):
            return tree[list(places)] if tree.ndim and len(tree) == count else tree
        if _is_list_of_samples(tree) and len(tree) == count:
            return [tree[place] for place in places]
        if isinstance(tree, list) or type(tree) is tuple:
            return type(tree)([others(child) for child in tree])
        return {k: others(v) for k, v in tree.items()} if type(tree) is dict else tree

    if _is_list_of_samples(batch):
        return [batch[place] for place in places]
    return others(map_tensors(rows, batch))


def require_different(batch: Any, places: Sequence[int], select: Select) -> None:
    """Raise ValueError if these samples are all alike: what mixes them would change nothing."""
    first, *others = (select(batch, [place]) for place in places)
    if all(_alike(first, other) for other in others):
        raise ValueError(
            f"the {len(places)} samples, taken one by one, are all alike: whether one enters "
            "the gradients of another cannot be seen on them. Pass samples that differ, real ones "
            "or torch.randn"
        )


def labels_in(tree: Any, *, of_one: bool = False) -> tuple[int, ...]:
    """The whole numbers that stand alone in a batch of one sample: classes, most likely.

    Args:
        tree: where to look.
        of_one: whether all in it is the sample's; else a single number may be the whole batch's.
    """
    of_one = of_one or _is_list_of_samples(tree)
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "iub":
        tree = torch.as_tensor(tree.astype(np.int64))
    if isinstance(tree, Tensor):
        is_whole = not tree.is_floating_point() and not tree.is_complex()
        is_one = tree.numel() == 1 and (of_one or tree.ndim > 0)
        return (int(tree),) if is_whole and is_one else ()
    if isinstance(tree, (int, np.integer)):
        return (int(tree),) if of_one else ()
    if isinstance(tree, (list, tuple, Mapping)):
        children = tree.values() if isinstance(tree, Mapping) else tree
    else:
        children = vars(tree).values() if hasattr(tree, "__dict__") else ()
    return tuple(number for child in children for number in labels_in(child, of_one=of_one))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if hasattr(one, "__dict__"):
        return _alike(vars(one), vars(other))
    return bool(one == other)


def _is_list_of_samples(tree: Any) -> bool:
    """A list of words, dictionaries or tuples; not one of tensors, which have rows."""
    arrays = (Tensor, np.ndarray)
    return isinstance(tree, list) and bool(tree) and not any(isinstance(t, arrays) for t in tree)


def _arrays_in(tree: Any) -> Iterator[Any]:
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, (list, tuple, Mapping)):
        for child in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _arrays_in(child)
