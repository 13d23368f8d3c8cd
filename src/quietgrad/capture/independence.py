"""Whether a model treats its samples independently: replace some, and the others must not notice.

Probes (see ``layout``) find mixing through gradients, down to the last bit, but only above the
first trainable parameter and only where gradients flow. This looks at the forward itself: half of
the samples are replaced by copies of another one, and the outputs of the rest are compared; then
all samples change places, and so must their outputs. It finds batch statistics on the raw input,
detached ones, anything done to integer ids, buffers that keep something of the data, and what
depends on a sample's place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quietgrad.capture.layout import Placement
from quietgrad.capture.repetition import ModelCall, Outcome
from quietgrad.capture.rules.forbidden import raw_data_refusal
from quietgrad.capture.trees import choose_in_lists, has_list_of, map_tensors
from quietgrad.errors import QuietgradError, SampleMixingError, UnsupportedOperationError

Splits = Sequence[tuple[Tensor, Tensor]]


def check_independence(call: ModelCall, splits: Splits) -> None:
    """Refuse a model whose outputs for some samples depend on other samples or on their places.

    ``splits`` are halves of the batch; each half is replaced once.
    """
    batch = len(splits[0][0])
    complaints = []
    readings = _readings(call, batch)
    for reading in readings:
        complaint = _complaint(call, splits, reading)
        if complaint is None:
            return  # where the samples could be in several places, one of them must do
        complaints.append(complaint)
    if complaints:
        raise complaints[0]
    if not readings and any(output.holds_samples(batch) for output in call.outputs):
        raise UnsupportedOperationError(
            f"the model ({type(call.model).__name__}) returns something for each of the {batch} "
            "samples, and no tensor that it is called with holds them: it gets them in another way "
            "(an array, an object, an attribute), so that it cannot be verified that it keeps them "
            "apart. Pass the samples as tensors, or as a list with one tensor for each."
        )


@dataclass(frozen=True)
class _Reading:
    """One way to read the arguments: where the samples are, and which tensors are shared."""

    place: Placement
    batch: int
    folded: bool = False
    squares_are_shared: bool = False
    in_lists: bool = False

    def choose(self, tensor: Tensor, samples: Tensor) -> Tensor:
        """An argument with sample ``i`` replaced by ``samples[i]``."""
        exact = _exact_dims(tensor, self.batch)
        if len(exact) > 1 and self.squares_are_shared:
            return tensor.clone()
        if self._fits(tensor):
            return _select(tensor, samples, self.place, self.batch)
        if not exact or self._is_plainly_shared(tensor):
            return tensor.clone()
        return _select(tensor, samples, Placement(exact[0], True), self.batch)

    def _is_plainly_shared(self, tensor: Tensor) -> bool:
        """Ids of positions often come as a batch of one; data with one step in front do not."""
        one_row = self.place.dim < tensor.ndim and tensor.shape[self.place.dim] == 1
        return one_row and not tensor.is_floating_point()

    def _fits(self, tensor: Tensor) -> bool:
        size = tensor.shape[self.place.dim] if self.place.dim < tensor.ndim else 0
        return size == self.batch or (self.folded and size > 0 and size % self.batch == 0)

    def repeat(self, call: ModelCall, samples: Tensor) -> Outcome:
        """The call with other samples, as in training."""
        return call.repeat(self._chooser(samples))

    def evaluate(self, call: ModelCall, samples: Tensor, seed: int) -> list[Tensor]:
        """The call with other samples, as in evaluation."""
        return call.repeat(self._chooser(samples), evaluating=True, seed=seed).outputs

    def _chooser(self, samples: Tensor) -> Callable[[Any], Any]:
        def choose(arguments: Any) -> Any:
            if self.in_lists:
                arguments = choose_in_lists(arguments, samples.tolist(), self.batch)
                return map_tensors(Tensor.clone, arguments)
            return map_tensors(lambda tensor: self.choose(tensor, samples), arguments)

        return choose


def _readings(call: ModelCall, batch: int) -> list[_Reading]:
    """The most natural ones first."""
    if has_list_of(batch, (call.args, call.kwargs)):
        return [_Reading(Placement(0, True), batch, in_lists=True)]
    arguments = call.arguments
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
        if not _rows_agree(call, before.outputs, index, after.outputs, index, batch):
            return SampleMixingError(
                f"samples are mixed: outputs of the model ({type(call.model).__name__}) for some "
                "samples changed when other samples of the batch were replaced. Its forward "
                "computes something across the batch: statistics (also detached ones), a cache of "
                "earlier samples, or an operation over the batch dimension. Compute it per sample, "
                "or from public data kept in buffers."
            )
    return _evaluation_complaint(call, reading)


def _evaluation_complaint(call: ModelCall, reading: _Reading) -> QuietgradError | None:
    """What changes when samples change places, or when there is one less."""
    kind = type(call.model).__name__
    everyone = torch.arange(reading.batch)
    before, again = (reading.evaluate(call, everyone, seed) for seed in (0, 1))
    if not _rows_agree(call, before, everyone, again, everyone, reading.batch):
        return None  # draws at random even in evaluation: runs cannot be compared
    moved = everyone.roll(1)
    after = reading.evaluate(call, moved, 0)
    if not _rows_agree(call, before, moved, after, everyone, reading.batch):
        return SampleMixingError(
            f"outputs of the model ({kind}) depend on a sample's place in the batch: when samples "
            "changed places, their outputs changed. Removing one sample would then change the "
            "gradients of all behind it. Something is indexed by the batch dimension; a "
            "sequence-first layer (a positional encoding, say) in a batch-first model is the usual "
            "cause."
        )
    if _depends_on_number(call, reading, before):
        return SampleMixingError(
            f"outputs of the model ({kind}) depend on the number of samples: with one left out, "
            "those of the others changed. Something is divided or scaled by the size of the batch. "
            "Use a constant instead."
        )
    return None


def _depends_on_number(call: ModelCall, reading: _Reading, before: Sequence[Tensor]) -> bool:
    fewer = torch.arange(reading.batch - 1)
    try:
        after = reading.evaluate(call, fewer, 0)
    except Exception:  # a model that is made for one size of batch says so in its own way
        return False
    places = _output_places(call, before, reading.batch)
    return any(
        not any(_is_part(one, other, fewer, place, reading.batch) for place in allowed)
        for one, other, allowed in zip(before, after, places, strict=False)
        if allowed and one.is_floating_point()
    )


def _is_part(one: Tensor, other: Tensor, samples: Tensor, place: Placement, batch: int) -> bool:
    """Whether ``other`` is what ``one`` has for these samples, or of a shape that cannot be."""
    rows = _select(one, samples, place, batch)
    if rows.shape != other.shape:
        return True
    # Kernels round differently for other sizes; a factor or a shift is far larger.
    bits = torch.finfo(one.dtype).bits
    tolerance = {64: 1e-8, 32: 1e-3}.get(bits, 0.1)
    difference = (rows - other).double().nan_to_num(0.0, 0.0, 0.0)
    return float(difference.norm()) <= tolerance * float(rows.double().nan_to_num(0.0).norm())


def _check_buffers(before: Outcome, after: Outcome) -> None:
    for name, value in before.buffers.items():
        if name in after.buffers and not _agree(value, after.buffers[name]):
            raise raw_data_refusal(name)


def _rows_agree(
    call: ModelCall,
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
            for place in places
        )
        for a, b, places in zip(old, new, _output_places(call, old, batch), strict=False)
        if a.shape == b.shape and places
    )


def _output_places(
    call: ModelCall, outputs: Sequence[Tensor], batch: int
) -> Iterator[list[Placement]]:
    """For each output where its samples can be: as probes of the losses left it, if they did."""
    for index, tensor in enumerate(outputs):
        known = call.outputs[index] if len(call.outputs) == len(outputs) else None
        places = _places(tensor, batch)
        yield [place for place in places if known is None or known.allows(place, batch)]


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
