"""What is inspected: a model, samples and a loss, to be run again and again."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.attributes import find_values
from quietgrad.capture.compare import (
    agree,
    agree_across_sizes,
    coarsest_bits,
    is_equal,
    is_same,
    map_tensors,
    tensors_in,
)
from quietgrad.capture.draws import find_devices
from quietgrad.clipping import Clipping
from quietgrad.grouping.base import Group
from quietgrad.inspection.randomness import Randomness
from quietgrad.strategies import Strategy

Select = Callable[[Any, list[int]], Any]
"""Makes a batch of some samples of another, given by their places; a place may come twice."""


Label = int | str
"""A class, as a number or as a word."""


def count_samples(batch: Any) -> int:
    """The number of samples in a list of them, or of rows in tensors; ValueError if there is none.

    Where tensors differ in that, it is the size that most of them share.
    """
    if _is_list_of_samples(batch) or _is_plain_tuple(batch):
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
        if (_is_list_of_samples(tree) or _is_plain_tuple(tree)) and len(tree) == count:
            return type(tree)(tree[place] for place in places)
        if isinstance(tree, list) or type(tree) is tuple:
            return type(tree)([others(child) for child in tree])
        return {k: others(v) for k, v in tree.items()} if type(tree) is dict else tree

    if _is_list_of_samples(batch):
        return [batch[place] for place in places]  # tensors in them are no rows of the batch
    return others(map_tensors(rows, batch))


def require_different(batch: Any, places: Sequence[int], select: Select) -> None:
    """Raise ValueError if these samples are all alike: what mixes them would change nothing."""
    first, *others = (select(batch, [place]) for place in places)
    if all(is_same(first, other) for other in others):
        raise ValueError(
            f"the {len(places)} samples, taken one by one, are all alike: whether one enters "
            "the gradients of another cannot be seen on them. Pass samples that differ, real ones "
            "or torch.randn"
        )


def find_labels(tree: Any, *, of_one: bool = False) -> tuple[Label, ...]:
    """The whole numbers and words that stand alone in a batch of one sample: classes, most likely.

    Unless all in it is the sample's (``of_one``), a single one may be the whole batch's.
    """
    of_one = of_one or _is_list_of_samples(tree) or (_is_plain_tuple(tree) and len(tree) == 1)
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "iub":
        tree = torch.as_tensor(tree.astype(np.int64), device="cpu")
    if isinstance(tree, Tensor):
        is_whole = not tree.is_floating_point() and not tree.is_complex()
        is_one = tree.numel() == 1 and (of_one or tree.ndim > 0)
        return (int(tree),) if is_whole and is_one else ()
    if isinstance(tree, (int, np.integer)):
        return (int(tree),) if of_one else ()
    if isinstance(tree, str):
        return (tree,) if of_one else ()
    if isinstance(tree, (list, tuple, Mapping)):
        children = tree.values() if isinstance(tree, Mapping) else tree
    else:
        children = vars(tree).values() if hasattr(tree, "__dict__") else ()
    return tuple(label for child in children for label in find_labels(child, of_one=of_one))


def spread_over_labels(labels: Sequence[tuple[Label, ...]], most: int) -> list[int]:
    """The places of at most so many samples: one of each label, then a second one, and so on."""
    seen: Counter[tuple[Label, ...]] = Counter()
    ranks = []
    for place, label in enumerate(labels):
        ranks.append((seen[label], place))
        seen[label] += 1
    return sorted(place for _, place in sorted(ranks)[:most])


def _is_list_of_samples(tree: Any) -> bool:
    """A list of words, dictionaries or tuples; not one of tensors, which have rows."""
    arrays = (Tensor, np.ndarray)
    return isinstance(tree, list) and bool(tree) and not any(isinstance(t, arrays) for t in tree)


def _is_plain_tuple(tree: Any) -> bool:
    """A tuple of words or numbers, as collating makes it of samples' words."""
    plain = (str, bytes, int, float, np.generic)
    return type(tree) is tuple and bool(tree) and all(isinstance(t, plain) for t in tree)


def _arrays_in(tree: Any) -> Iterator[Any]:
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, (list, tuple, Mapping)):
        for child in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _arrays_in(child)


Held = dict[str, Any]
"""What a model holds besides its parameters, by a path: tensors and plain values."""


class Copies:
    """Gives copies of a model. Parameters are most of it, and runs leave them alone: copied once.

    Args:
        original: never run, and never changed.
    """

    def __init__(self, original: nn.Module) -> None:
        self._original = original
        self._parameters: list[nn.Parameter] = []

    def fresh(self) -> nn.Module:
        """A copy that is as the original is. The one given before must not be used any more."""
        originals = list(self._original.parameters())
        if not all(map(_is_copy, self._parameters, originals)):
            self._parameters = []  # a forward that writes parameters
        memo = {id(p): own for p, own in zip(originals, self._parameters, strict=False)}
        model = copy_model(self._original, memo)
        self._parameters = list(model.parameters())
        model.zero_grad()
        return model


def _is_copy(own: nn.Parameter, original: nn.Parameter) -> bool:
    return own.requires_grad == original.requires_grad and bool(is_equal(own, original))


def copy_model(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy, also of a model that holds results of an earlier run.

    Args:
        model: what to copy.
        memo: by its id, what is not to be copied, and what to take instead.

    Raises:
        ValueError: something in it cannot be copied.
    """
    for _, leaf in find_values(model):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            memo[id(leaf)] = leaf.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ValueError(
            f"the model cannot be copied, and checks are run on copies: {_culprit(model)} "
            f"({type(error).__name__}: {error}). Remove it, or build the model anew without it."
        ) from error


def _culprit(model: nn.Module) -> str:
    """The first attribute that cannot be copied."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                if name != "_modules":
                    copy.deepcopy(value)
            except Exception:
                kind = type(value).__name__
                return f"attribute '{path}.{name}' is a {kind}".replace("'.", "'")
    return f"a {type(model).__name__}"


def copy_state(model: nn.Module) -> Held:
    """Everything that a run can change besides parameters."""
    found: Held = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    for name, leaf in find_values(model):
        found[name] = leaf.detach().clone() if isinstance(leaf, Tensor) else copy.copy(leaf)
    return found


LossFunction = Callable[[nn.Module, Any], Tensor]
"""``loss_fn(model, batch)``: one loss per sample."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model as it is to be trained. Every run is made on a copy that nothing else has touched.

    Attributes:
        original: the model; never run.
        batch: of samples.
        loss_fn: as in training.
        select: makes batches of other samples.
        count: the number of samples of the batch that are run.
        compared: the number of those whose gradients are captured and compared, each of which
            costs as much as many runs of the model.
        clipping: as in training.
        groups: as in training.
        strategy: as in training.
        steady: of draws that are the same for every row, the share of what is possible that they
            are above; None if they are as in training.
        answers: to questions that are asked once.
    """

    original: nn.Module
    batch: Any
    loss_fn: LossFunction
    select: Select
    count: int
    compared: int
    clipping: Clipping
    groups: tuple[Group, ...]
    strategy: Strategy
    steady: float | None = None
    answers: dict[Callable[..., Any], Any] = field(default_factory=dict)

    @property
    def everyone(self) -> list[int]:
        """The places of all samples."""
        return list(range(self.count))

    @cached_property
    def labels(self) -> list[tuple[Label, ...]]:
        """Of each sample the numbers and words that it comes with; empty if there are none."""
        return [find_labels(self.select(self.batch, [place])) for place in self.everyone]

    @cached_property
    def captured(self) -> list[int]:
        """The places of the samples whose gradients are captured and compared, of many labels."""
        return spread_over_labels(self.labels, self.compared)

    def fresh_model(self) -> nn.Module:
        """A copy on which nothing was run."""
        return self._copies.fresh()

    @cached_property
    def _copies(self) -> Copies:
        return Copies(self.original)

    @cached_property
    def randomness(self) -> Randomness:
        """Makes draws repeatable, and remembers what there was of them."""
        devices = find_devices(self.original)
        return Randomness(self.count, devices, steady=self.steady)

    def losses(self, model: nn.Module, places: Sequence[int]) -> Tensor:
        """The losses of some samples, by a copy of the model, with repeatable draws."""
        batch = self.select(self.batch, list(places))
        with self.randomness.running(places):
            return self.loss_fn(model, batch)

    @torch.no_grad()
    def align_draws(self, *, is_low: bool) -> None:
        """Draw from this end from now on, having seen what fewer samples can be given again."""
        randomness = self.randomness
        randomness.is_low = is_low
        if randomness.draws.is_recorded and not randomness.draws.has_drawn:
            return
        whole, fewer = self.losses(self.fresh_model(), self.everyone), self.everyone[:-1]
        with suppress(RuntimeError, ValueError, IndexError):  # a fault, as removing samples tells
            for randomness.draws.is_major in (True, False):
                found = self.losses(self.fresh_model(), fewer)
                if self.agree(whole[fewer], found, same_size=False):
                    return
        randomness.draws.is_major = True

    def gradients(
        self, losses: Tensor, model: nn.Module, places: Sequence[int]
    ) -> dict[str, Tensor]:
        """The ordinary gradient of a sum of losses, by autograd; zero where there is none."""
        # Not by autograd.grad, which reentrant checkpointing refuses.
        model.zero_grad()
        with self.randomness.running(places, noting=False):
            losses.sum().backward()
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.to_dense()
            for name, p in model.named_parameters()
            if p.requires_grad
        }
        model.zero_grad()
        return found

    @property
    def bits(self) -> int:
        """Of the least precise numbers that it computes with."""
        lower = torch.empty(0, dtype=torch.bfloat16, device="cpu")
        lowest = [lower] if self.randomness.saw_autocast else []
        return coarsest_bits([*self.original.parameters(), *lowest])

    def agree(self, before: Tensor, after: Tensor, *, same_size: bool) -> bool:
        """Whether two runs gave the same but for rounding."""
        return bool((agree if same_size else agree_across_sizes)(before, after, self.bits))


def require_usable(model: Any, loss_fn: Any) -> None:
    """Refuse what is no model, or no function of one."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    if not callable(loss_fn):
        raise ValueError(
            f"loss_fn is a {type(loss_fn).__name__}: expected a function of model and batch"
        )


Answer = TypeVar("Answer")


def cache_answer(ask: Callable[[Subject], Answer]) -> Callable[[Subject], Answer]:
    """The answer is kept with the subject, for as long as that is."""

    @wraps(ask)
    def answer(subject: Subject) -> Answer:
        if ask not in subject.answers:
            subject.answers[ask] = ask(subject)
        return subject.answers[ask]  # type: ignore[no-any-return]

    return answer
