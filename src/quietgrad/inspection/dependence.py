"""Whether samples are independent of each other: change some, and the others must not notice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from quietgrad.capture.choice import replace_others, separate_samples
from quietgrad.capture.compare import (
    agree_by_sample,
    find_largest,
    first_difference,
    tensors_in,
)
from quietgrad.errors import QuietgradError
from quietgrad.inspection.report import Finding, Severity, draws_differ, fault, listed, named
from quietgrad.inspection.subject import Label, Subject, spread_over_labels

_MOST_RUNS = 64
_MOST_CLASSES = 16
_MOST_ALONE = 8
_ENOUGH = 4


def variety(subject: Subject) -> Iterator[Finding]:
    """There are samples enough, with labels enough, for a dependence on the batch to show."""
    if subject.count < _ENOUGH:
        yield Finding(
            "variety",
            Severity.NOTE,
            f"there are {subject.count} samples: a loss that depends on the size of the batch, on "
            "counts or on the largest values in it may look the same with one sample less.",
            f"Pass at least {_ENOUGH} samples.",
        )
        return
    labels = [set(column) for column in _label_columns(subject)]
    classes = _width_of_outputs(subject) if labels else 0
    counted = [found for found in labels if classes > 1 and found <= set(range(classes))]
    missing = sorted(set(range(classes)) - counted[0]) if counted else []
    unseen = "a loss that is divided or weighted by the number of samples of"
    if missing:
        yield Finding(
            "variety",
            Severity.NOTE,
            f"no sample has the label {listed(missing)} ({len(missing)} of {classes} classes): "
            f"{unseen} such a class would not be found out.",
            f"Pass a sample of each class as well: {len(missing)} more samples would do.",
        )
    elif labels and all(len(found) == 1 for found in labels):
        yield Finding(
            "variety",
            Severity.NOTE,
            f"all samples have the same label: {unseen} another class would not be found out.",
            "Pass samples with other labels as well, one of each.",
        )


@torch.no_grad()
def _width_of_outputs(subject: Subject) -> int:
    """The number of columns of what the model returns, if it has a row for each sample; or 0."""
    model, widths = subject.fresh_model(), [0]

    def hook(_: nn.Module, args: Any, output: Any) -> None:
        rows = (t for t in tensors_in(output) if t.ndim == 2 and len(t) == subject.count)
        widths.extend(t.shape[1] for t in rows if t.is_floating_point())

    handle = model.register_forward_hook(hook)
    subject.losses(model, subject.everyone)
    handle.remove()
    return max(widths)


def independence(subject: Subject) -> Iterator[Finding]:
    """Others' losses stay the same, whichever samples are removed or replaced."""
    for is_low in (True, False):
        if is_low or subject.randomness.has_single:
            subject.align_draws(is_low=is_low)
            found = _find_dependence(subject) or _find_gradient_dependence(subject)
            subject.randomness.is_low = True
            if found:
                yield found
                return
    if subject.randomness.unaligned:
        yield draws_differ("independence", "removed samples", subject)


@torch.no_grad()
def _find_dependence(subject: Subject) -> Finding | None:
    losses = subject.losses(subject.fresh_model(), subject.everyone)
    largest = find_largest([losses])
    for change in _changes(subject, losses):
        try:
            after = subject.losses(subject.fresh_model(), change.after)
        except QuietgradError:
            raise
        except (RuntimeError, ValueError, IndexError) as error:
            if change.keeps_size:
                raise
            return fault(
                "loss",
                f"{change}, the loss function does not run ({type(error).__name__}: {error}), "
                "although it does for all samples together.",
                "Batches are drawn at random and are of any size. Compute each sample's loss from "
                "that sample alone.",
            )
        was, now = change.rows
        fits = len(after) == len(change.after)
        if not fits or not subject.agree(losses[was], after[now], same_size=change.keeps_size):
            if subject.randomness.unaligned and not change.keeps_size:
                return None
            return _describe_mixing(subject, change)
    if subject.randomness.unaligned:
        return None
    for place in spread_over_labels(subject.labels, _MOST_ALONE):
        alone = _run_alone(subject, subject.fresh_model(), place)
        # Of a small loss only rounding errors of larger ones may be left.
        before = losses[place : place + 1]
        if alone is not None and not agree_by_sample(before, alone, subject.bits, largest):
            return _describe_mixing(subject, SampleChange.isolating(place))
    return None


def _run_alone(subject: Subject, model: nn.Module, place: int) -> Tensor | None:
    """The loss of a batch of one; None if it does not run, of which exactness knows more."""
    try:
        losses = subject.losses(model, [place])
    except QuietgradError:
        raise
    except Exception:
        return None
    return losses.reshape(1) if isinstance(losses, Tensor) and losses.numel() == 1 else None


Gradients = dict[str, Tensor]
"""By the parameter's name."""


def _find_gradient_dependence(subject: Subject) -> Finding | None:
    """A loss may keep its value while its gradient is scaled by something of the batch.

    Gradients are linear in losses. So the sum of the gradients of several smaller batches, with a
    weight for each sample, is one gradient of the whole batch.
    """
    if subject.randomness.unaligned:
        return None
    with torch.no_grad():
        losses = subject.losses(subject.fresh_model(), subject.everyone)
    generator = torch.Generator().manual_seed(0)
    signs = 2 * torch.randint(2, (subject.count,), generator=generator, device="cpu") - 1
    sizes = 0.5 + torch.rand(subject.count, generator=generator, device="cpu")
    weights = (sizes * signs).to(losses)
    finite = set(losses.isfinite().nonzero().flatten().tolist())
    removals = [change.after for change in _class_removals(subject)]
    alone = [[place] for place in spread_over_labels(subject.labels, _MOST_ALONE)]
    for batches, how in ((alone, "alone"), (removals, "without one of the classes")):
        parts: Gradients = {}
        times = torch.zeros_like(weights)  # how often a sample was run
        for batch in batches:
            places = [place for place in batch if place in finite]
            found = _weighted_gradients(subject, places, weights) if places else {}
            times[places] += bool(found)
            parts = {name: parts.get(name, 0.0) + part for name, part in found.items()} or parts
        together = _weighted_gradients(subject, sorted(finite), weights * times) if parts else {}
        if not all(gradient.isfinite().all() for gradient in together.values()):
            continue  # in training such samples are dropped
        if name := first_difference(together, parts, subject.bits):
            return fault(
                "independence",
                f"the gradients of samples for parameter '{name}' are others in the whole batch "
                f"than {how}, although their losses are the same.",
                "A gradient is scaled by something of the whole batch (a count, a weight, a hook). "
                "Compute each sample's loss from that sample alone.",
            )
    return None


def _weighted_gradients(subject: Subject, places: list[int], weights: Tensor) -> Gradients:
    """The gradients of a weighted sum of losses; none if a sample does not run alone."""
    model = subject.fresh_model()
    if len(places) > 1:
        losses: Tensor | None = subject.losses(model, places)
    else:
        losses = _run_alone(subject, model, places[0])
    if losses is None:
        return {}
    if not losses.requires_grad:
        parameters = model.named_parameters()
        return {name: torch.zeros_like(p) for name, p in parameters if p.requires_grad}
    return subject.gradients(losses * weights[places], model, places)


@dataclass(frozen=True)
class SampleChange:
    """Some samples of the batch are replaced or removed, or all but one are.

    Attributes:
        places: of those samples, or of that one.
        after: the places of the samples that are run instead of everyone.
        rows: of the samples that must not change, the rows they had and the rows they have now.
        done: "replaced", "removed" or "run alone".
    """

    places: list[int]
    after: list[int]
    rows: tuple[list[int], list[int]]
    done: str

    @staticmethod
    def replacing(subject: Subject, stand_ins: Mapping[int, int]) -> SampleChange:
        """Copies of other samples take their places."""
        after = [stand_ins.get(each, each) for each in subject.everyone]
        others = [each for each in subject.everyone if each not in stand_ins]
        return SampleChange(sorted(stand_ins), after, (others, others), "replaced")

    @staticmethod
    def removing(subject: Subject, places: Sequence[int]) -> SampleChange:
        """There are fewer samples."""
        others = [each for each in subject.everyone if each not in places]
        return SampleChange(sorted(places), others, (others, list(range(len(others)))), "removed")

    @staticmethod
    def isolating(place: int) -> SampleChange:
        """All others are removed."""
        return SampleChange([place], [place], ([place], [0]), "run alone")

    @property
    def keeps_size(self) -> bool:
        """Whether there are as many samples as before."""
        return self.done == "replaced"

    def __str__(self) -> str:
        many = len(self.places) > 1
        numbers = f"samples {listed(self.places)} are" if many else f"sample {self.places[0]} is"
        return f"when {numbers} {self.done}"


def _changes(subject: Subject, losses: Tensor) -> Iterator[SampleChange]:
    """Every sample is replaced by one of another label, wherever there is one, and is a stand-in.

    One at a time, or in as many groups as there may be runs. Then half of the samples, in turns
    such that any two are told apart: all replaced by one, and removed.
    """
    together: dict[tuple[Label, ...], list[int]] = {}
    for place, label in enumerate(subject.labels):
        together.setdefault(label, []).append(place)
    order = [place for places in together.values() for place in places]
    # By as much as the most frequent label takes, so that hardly one comes upon its own.
    shift = max(map(len, together.values())) if len(together) > 1 else 1
    stand_ins = dict(zip(order, order[shift:] + order[:shift], strict=True))
    size = -(-subject.count // _MOST_RUNS)
    for start in range(0, subject.count, size):
        some = order[start : start + size]
        yield SampleChange.replacing(subject, {place: stand_ins[place] for place in some})
    halves, scores = [], losses.nan_to_num().cpu()
    for kept in separate_samples(subject.count, shuffle=False):
        halves.append((~kept).nonzero().flatten().tolist())
        after = replace_others(kept, scores, largest=True).tolist()
        yield SampleChange.replacing(subject, {place: after[place] for place in halves[-1]})
    if subject.randomness.unaligned:
        return  # a batch of another size draws otherwise
    yield SampleChange.removing(subject, subject.everyone[-1:])
    for half in halves:
        if subject.count - len(half) > 1:  # of one sample alone, exactness knows more
            yield SampleChange.removing(subject, half)
    yield from _class_removals(subject)


def _class_removals(subject: Subject) -> list[SampleChange]:
    """Each class is removed in turn, of labels with few classes first."""
    removals = []
    for column in sorted(_label_columns(subject), key=lambda column: len(set(column))):
        for label in dict.fromkeys(column):
            places = [place for place, other in enumerate(column) if other == label]
            if subject.count - len(places) > 1:
                removals.append(SampleChange.removing(subject, places))
    return removals[:_MOST_CLASSES]


def _label_columns(subject: Subject) -> list[tuple[Label, ...]]:
    """For each label that samples come with, that of every sample."""
    shared = len({len(labels) for labels in subject.labels}) == 1
    return list(zip(*subject.labels, strict=True)) if shared else []


def _describe_mixing(subject: Subject, change: SampleChange) -> Finding:
    is_alone = change.done == "run alone"
    found = f"{change}, {'its loss changes' if is_alone else 'the losses of other samples change'}"
    where, is_told = _find_mixing_module(subject, change)
    if where is None and not is_told:
        return fault(
            "independence",
            f"{found}: samples meet in the model or in the loss function; it cannot be told where, "
            "for they are padded or joined to other sizes.",
            "Compute everything from one sample. Padded places must not count, in the loss "
            "neither: (losses * mask).sum(1) / mask.sum(1). Where collate_fn joins samples, "
            "indices into the rows (edges, offsets) must count from the sample's first row.",
        )
    if where is None:
        return fault(
            "independence",
            f"{found}: samples meet in the loss function, not in a module (a contrastive term, a "
            "mean, a count or a weight over the batch, a division by the batch size).",
            "Compute each sample's loss from that sample alone. If the batch holds something else "
            "that is as long as it (class weights, say), say with select= how it is cut.",
        )
    module = subject.original.get_submodule(where)
    remedy = (
        "Something in its forward is computed over the batch (a mean, a sort, a softmax over "
        "dimension 0, a division by its size, a cache). Compute it per sample, or from public data."
    )
    if isinstance(module, _BatchNorm):
        remedy = (
            "It normalises with statistics of the whole batch. Replace it by GroupNorm or "
            "LayerNorm, or keep its statistics fixed by calling .eval() on it after model.train()."
        )
    return fault("independence", f"{found}: samples meet in {named(where, module)}.", remedy)


Visit = tuple[str, list[Tensor], list[Tensor]]
"""One run of one module: its path, what it got and what it gave."""


def _find_mixing_module(subject: Subject, change: SampleChange) -> tuple[str | None, bool]:
    """The path of the module in which others' rows change too, None if in none; if it can be told.

    Modules are asked in the order in which they finish, so the innermost is named.
    """
    is_told = True
    before, after = _visits(subject, subject.everyone), _visits(subject, change.after)

    def agree(some: list[Tensor], others: list[Tensor]) -> bool:
        nonlocal is_told
        pairs = list(zip(some, others, strict=False))
        is_told &= all(
            one.shape == other.shape or _fitting_dims(one, other, change, subject)
            for one, other in pairs
        )
        return all(_same_rows(one, other, change, subject) for one, other in pairs)

    for (path, *one), (other_path, *other) in zip(before, after, strict=False):
        if path != other_path:
            return None, is_told
        inputs, outputs = map(agree, one, other)
        if inputs and not outputs:
            return path, is_told
    return None, is_told


def _visits(subject: Subject, places: Sequence[int]) -> list[Visit]:
    model = subject.fresh_model()
    visits: list[Visit] = []

    def watch(path: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            inputs, outputs = (
                [tensor.detach().clone() for tensor in tensors_in(tree)]
                for tree in ((args, kwargs), output)
            )
            visits.append((path, inputs, outputs))

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


def _same_rows(one: Tensor, other: Tensor, change: SampleChange, subject: Subject) -> bool:
    """Whether there is a way to read the tensors in which those samples' rows are the same."""
    count, now = subject.count, len(change.after)
    fitting = _fitting_dims(one, other, change, subject)
    if not fitting:
        return one.shape == other.shape  # no samples in it
    for dim in fitting:
        left = one.movedim(dim, 0).reshape(count, -1)[change.rows[0]]
        right = other.movedim(dim, 0).reshape(now, -1)[change.rows[1]]
        if subject.agree(left, right, same_size=change.keeps_size):
            return True
    return False


def _fitting_dims(one: Tensor, other: Tensor, change: SampleChange, subject: Subject) -> list[int]:
    """The dimensions that may hold the samples in both runs."""
    count, now = subject.count, len(change.after)
    return [
        dim
        for dim, size in enumerate(one.shape)
        if size
        and size % count == 0
        and other.shape == (*one.shape[:dim], size // count * now, *one.shape[dim + 1 :])
    ]
