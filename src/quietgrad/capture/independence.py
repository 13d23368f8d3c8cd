"""Whether a model treats its samples independently: replace some, and the others must not notice.

Probes (see ``layout``) find mixing through gradients, down to the last bit, but only above the
first trainable parameter and only where gradients flow. This looks at the forward itself: half of
the samples are replaced by copies of another one, and the outputs of the rest are compared; then
all samples change places, and so must their outputs. It finds batch statistics on the raw input,
detached ones, anything done to integer ids, buffers that keep something of the data, and what
depends on a sample's place in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad.capture.layout import Placement
from quietgrad.capture.repetition import ModelCall, Outcome
from quietgrad.capture.rules.forbidden import raw_data_refusal
from quietgrad.errors import QuietgradError, SampleMixingError

Splits = Sequence[tuple[Tensor, Tensor]]


def check_independence(call: ModelCall, splits: Splits) -> None:
    """Refuse a model whose outputs for some samples depend on other samples or on their places.

    ``splits`` are halves of the batch; each half is replaced once. Says nothing where it cannot
    tell: arguments or outputs in which no dimension can hold the samples.
    """
    complaints = []
    for reading in _readings(call.arguments, len(splits[0][0])):
        complaint = _complaint(call, splits, reading)
        if complaint is None:
            return  # where the samples could be in several places, one of them must do
        complaints.append(complaint)
    if complaints:
        raise complaints[0]


@dataclass(frozen=True)
class _Reading:
    """One way to read the arguments: where the samples are, and which tensors are shared."""

    place: Placement
    batch: int
    folded: bool = False
    squares_are_shared: bool = False

    def choose(self, tensor: Tensor, samples: Tensor) -> Tensor:
        """An argument with sample ``i`` replaced by ``samples[i]``."""
        exact = _exact_dims(tensor, self.batch)
        if len(exact) > 1 and self.squares_are_shared:
            return tensor.clone()
        if self._fits(tensor):
            return _select(tensor, samples, self.place, self.batch)
        return (
            _select(tensor, samples, Placement(exact[0], True), self.batch)
            if exact
            else tensor.clone()
        )

    def _fits(self, tensor: Tensor) -> bool:
        size = tensor.shape[self.place.dim] if self.place.dim < tensor.ndim else 0
        return size == self.batch or (self.folded and size > 0 and size % self.batch == 0)

    def repeat(self, call: ModelCall, samples: Tensor) -> Outcome:
        """The call with other samples, as in training."""
        return call.repeat(lambda tensor: self.choose(tensor, samples))

    def evaluate(self, call: ModelCall, samples: Tensor, seed: int) -> list[Tensor]:
        """The call with other samples, as in evaluation."""
        outcome = call.repeat(
            lambda tensor: self.choose(tensor, samples), evaluating=True, seed=seed
        )
        return outcome.outputs


def _readings(arguments: Sequence[Tensor], batch: int) -> list[_Reading]:
    """The most natural ones first."""
    exact = [Placement(dim, True) for tensor in arguments for dim in _exact_dims(tensor, batch)]
    folded = [place for tensor in arguments for place in _folded_places(tensor, batch)]
    counts = [len(_exact_dims(tensor, batch)) for tensor in arguments]
    readings = [_Reading(place, batch) for place in exact]
    if 1 in counts and max(counts) > 1:
        readings += [_Reading(place, batch, squares_are_shared=True) for place in exact]
    readings += [_Reading(place, batch, folded=True) for place in folded]
    return list(dict.fromkeys(readings))


def _complaint(call: ModelCall, splits: Splits, reading: _Reading) -> QuietgradError | None:
    batch = reading.batch
    unchanged = torch.arange(batch)
    before = reading.repeat(call, unchanged)
    for kept in (half for halves in splits for half in halves):
        after = reading.repeat(call, torch.where(kept, unchanged, unchanged[kept][0]))
        _check_buffers(before, after)
        index = kept.nonzero().flatten()
        if not _rows_agree(before.outputs, index, after.outputs, index, batch):
            return SampleMixingError(
                f"samples are mixed: outputs of the model ({type(call.model).__name__}) for some "
                "samples changed when other samples of the batch were replaced. Its forward "
                "computes something across the batch: statistics (also detached ones), a cache of "
                "earlier samples, or an operation over the batch dimension. Compute it per sample, "
                "or from public data kept in buffers."
            )
    if _depends_on_places(call, reading):
        return SampleMixingError(
            f"outputs of the model ({type(call.model).__name__}) depend on a sample's place in the "
            "batch: when samples changed places, their outputs changed. Removing one sample would "
            "then change the gradients of all behind it. Something is indexed by the batch "
            "dimension; a sequence-first layer (a positional encoding, say) in a batch-first model "
            "is the usual cause."
        )
    return None


def _check_buffers(before: Outcome, after: Outcome) -> None:
    for name, value in before.buffers.items():
        if name in after.buffers and not _agree(value, after.buffers[name]):
            raise raw_data_refusal(name)


def _depends_on_places(call: ModelCall, reading: _Reading) -> bool:
    unchanged = torch.arange(reading.batch)
    moved = unchanged.roll(1)
    before, again = (reading.evaluate(call, unchanged, seed) for seed in (0, 1))
    if not _rows_agree(before, unchanged, again, unchanged, reading.batch):
        return False  # draws at random even in evaluation: places cannot be compared
    after = reading.evaluate(call, moved, 0)
    return not _rows_agree(before, moved, after, unchanged, reading.batch)


def _rows_agree(
    old: Sequence[Tensor],
    old_samples: Tensor,
    new: Sequence[Tensor],
    new_samples: Tensor,
    batch: int,
) -> bool:
    """Whether each output has a reading in which those samples' rows are the same in both runs."""
    return all(
        any(
            _agree(_select(a, old_samples, place, batch), _select(b, new_samples, place, batch))
            for place in _places(a, batch)
        )
        for a, b in zip(old, new, strict=False)
        if a.shape == b.shape and _places(a, batch)
    )


def _agree(left: Tensor, right: Tensor) -> bool:
    if left.shape != right.shape or not left.is_floating_point():
        return torch.equal(left, right)
    # Kernels may round differently for other values elsewhere in the batch, but hardly more.
    info = torch.finfo(left.dtype)
    tolerance = info.eps * (2 if info.bits == 16 else 64)
    left, right = left.double(), right.double()
    scale = left.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if left.numel() else 0.0
    return torch.allclose(left, right, atol=tolerance * scale, rtol=0, equal_nan=True)


def _select(tensor: Tensor, samples: Tensor, place: Placement, batch: int) -> Tensor:
    """The rows of some samples, in their order."""
    each = tensor.shape[place.dim] // batch
    rows = torch.arange(each * batch).view((batch, each) if place.major else (each, batch))
    chosen = rows[samples] if place.major else rows[:, samples]
    return tensor.index_select(place.dim, chosen.flatten().to(tensor.device))


def _exact_dims(tensor: Tensor, batch: int) -> list[int]:
    return [dim for dim, size in enumerate(tensor.shape) if size == batch]


def _places(tensor: Tensor, batch: int) -> list[Placement]:
    """Where the samples could be: dimensions of their number, then of a multiple of it."""
    exact = [Placement(dim, True) for dim in _exact_dims(tensor, batch)]
    return exact + _folded_places(tensor, batch)


def _folded_places(tensor: Tensor, batch: int) -> list[Placement]:
    multiples = [dim for dim, size in enumerate(tensor.shape) if size > batch and size % batch == 0]
    return [Placement(dim, major) for dim in multiples for major in (True, False)]
