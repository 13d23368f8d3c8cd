"""Whether a model treats its samples independently: replace some, and the others must not notice.

Probes (see ``layout``) find mixing through gradients, down to the last bit, but only above the
first trainable parameter and only where gradients flow. This looks at the forward itself: half of
the samples are replaced by copies of another one, and the outputs of the rest are compared; then
all samples change places, and so must their outputs; then some are left out. It finds batch
statistics on the raw input, detached ones, anything done to integer ids, buffers that keep
something of the data, and what depends on a sample's place in the batch or on its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad.capture.compare import (
    InputLayout,
    OutputComparison,
    agree,
    coarsest_bits,
    readings_of,
    rows_of,
    same_throughout,
    tells_apart,
)
from quietgrad.capture.repetition import CallOutcome, ModelCall
from quietgrad.capture.rules.forbidden import raw_data_refusal
from quietgrad.capture.trees import Node
from quietgrad.errors import QuietgradError, SampleMixingError, UnsupportedOperationError

Splits = Sequence[tuple[Tensor, Tensor]]

# Draws that differ between two samples are equally likely the other way round: 2 ** -20 is left.
_SEEDS = 20


def check_independence(call: ModelCall, splits: Splits) -> None:
    """Refuse a model whose outputs for some samples depend on other samples or on their places.

    ``splits`` are halves of the batch; each half is replaced once.
    """
    batch = len(splits[0][0])
    complaints = []
    readings = readings_of(call, batch)
    for reading in readings:
        complaint = _Examination(call, reading).complaint(splits)
        if complaint is None:
            return  # where the samples could be in several places, one of them must do
        complaints.append(complaint)
    if complaints:
        raise complaints[0]
    if any(output.holds_samples(batch) for output in call.outputs):
        raise UnsupportedOperationError(
            f"the model ({type(call.model).__name__}) returns something for each of the {batch} "
            "samples, and no tensor that it is called with holds them: it gets them in another way "
            "(an array, an object, an attribute), so that it cannot be verified that it keeps them "
            "apart. Pass the samples as tensors, or as a list with one tensor for each."
        )


@dataclass(frozen=True)
class _Examination:
    """Runs of one call, with its arguments read in one way."""

    call: ModelCall
    reading: InputLayout

    def complaint(self, splits: Splits) -> QuietgradError | None:
        """What is wrong with the model, if anything is."""
        unchanged = torch.arange(self.reading.batch)
        before = self.reading.repeat(self.call, unchanged)
        for kept in (half for halves in splits for half in halves):
            others = torch.where(kept, unchanged, unchanged[kept][0])
            after = self.reading.repeat(self.call, others)
            _check_buffers(before, after)
            rest = kept.nonzero().flatten()
            if not self._comparison(len(kept), rest, rest).holds(before.returned, after.returned):
                return _mixed(self._kind)
        if not self._is_verifiable(before.returned):
            return _nothing_to_compare(self._kind)
        return self._complaint_of_places(evaluating=True) or self._complaint_of_places(
            evaluating=False
        )

    def _complaint_of_places(self, *, evaluating: bool) -> QuietgradError | None:
        """What changes when samples change places, or when there are fewer."""
        everyone = torch.arange(self.reading.batch)
        before, again = (self._run(everyone, evaluating, seed) for seed in (0, 1))
        if not same_throughout(before, again):
            return None  # draws at random: a sample's draws are another's in another place
        for samples, complain in self._rearranged():
            after = self._run_if_possible(samples, evaluating)
            if after is None or self._is_rearranged(before, after, samples):
                continue
            if self._is_random(everyone, before, evaluating):
                return None
            if not self._is_random(samples, after, evaluating):
                return complain(self._kind)
        return None

    def _rearranged(self) -> Iterator[tuple[Tensor, Callable[[str], QuietgradError]]]:
        """Leaving out one is what privacy is about; half of them is seen in large batches too."""
        batch = self.reading.batch
        yield torch.arange(batch).roll(1), _placed
        for count in sorted({batch - 1, batch // 2}):
            yield torch.arange(count), _counted

    def _is_random(self, samples: Tensor, first: Node, evaluating: bool) -> bool:
        """Whether it draws after all: rare draws, as of a small dropout, can be alike twice."""
        runs = (self._run(samples, evaluating, seed) for seed in range(2, 2 + _SEEDS))
        return any(not same_throughout(first, run) for run in runs)

    def _run_if_possible(self, samples: Tensor, evaluating: bool) -> Node | None:
        try:
            return self._run(samples, evaluating, 0)
        except Exception:
            if len(samples) == self.reading.batch:
                raise
            return None  # a model that is made for one size of batch says so in its own way

    def _run(self, samples: Tensor, evaluating: bool, seed: int) -> Node:
        return self.reading.repeat(self.call, samples, evaluating=evaluating, seed=seed).returned

    def _is_rearranged(self, before: Node, after: Node, samples: Tensor) -> bool:
        """Whether a run with these samples gave what all together gave for each of them."""
        count = len(samples)
        return self._comparison(count, samples, torch.arange(count)).holds(before, after)

    def _comparison(self, count: int, old: Tensor, new: Tensor) -> OutputComparison:
        bits = coarsest_bits(self.call.model.parameters())
        return OutputComparison(self.call.outputs, self.reading.batch, count, old, new, bits)

    def _is_verifiable(self, node: Node) -> bool:
        """Whether samples were told apart in something that losses can depend on."""
        if not any(p.requires_grad for p in self.call.model.parameters()):
            return True
        return tells_apart(node, rows_of(node, self.call.outputs), self.reading.batch)

    @property
    def _kind(self) -> str:
        return type(self.call.model).__name__


def _check_buffers(before: CallOutcome, after: CallOutcome) -> None:
    for name, value in before.buffers.items():
        if name in after.buffers and not agree(value, after.buffers[name]):
            raise raw_data_refusal(name)


def _mixed(kind: str) -> QuietgradError:
    return SampleMixingError(
        f"samples are mixed: outputs of the model ({kind}) for some samples, or their shape, "
        "changed when other samples of the batch were replaced. Its forward computes something "
        "across the batch: statistics (also detached ones), a length or a set of all samples, a "
        "cache of earlier samples, or an operation over the batch dimension. Compute it per "
        "sample, or from public data kept in buffers."
    )


def _placed(kind: str) -> QuietgradError:
    return SampleMixingError(
        f"outputs of the model ({kind}) depend on a sample's place in the batch: when samples "
        "changed places, their outputs changed. Removing one sample would then change the "
        "gradients of all behind it. Something is indexed by the batch dimension; a "
        "sequence-first layer (a positional encoding, say) in a batch-first model is the usual "
        "cause."
    )


def _counted(kind: str) -> QuietgradError:
    return SampleMixingError(
        f"outputs of the model ({kind}) depend on the number of samples: with some left out, "
        "those of the others changed. Something is divided or scaled by the size of the batch. "
        "Use a constant instead."
    )


def _nothing_to_compare(kind: str) -> QuietgradError:
    return UnsupportedOperationError(
        f"the model ({kind}) is called with samples and returns nothing in which they can be told "
        "apart, so that it cannot be verified that it keeps them apart: its results leave it in "
        "another way (an attribute, a closure), or as rows of all samples one after the other. "
        "Return them from the forward, as tensors with a dimension for the samples or as a list "
        "with one entry for each."
    )
