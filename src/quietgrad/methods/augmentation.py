"""Self-augmentation: a sample's gradient is that of its mean loss over random views of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from quietgrad._checks import require_count
from quietgrad.capture.choice import replace_others, score_samples, separate_samples
from quietgrad.capture.compare import agree, agree_across_sizes
from quietgrad.capture.draws import RepeatableDraws
from quietgrad.errors import LossError, SampleMixingError


def per_sample(loss: Callable[..., Tensor], outputs: Tensor, labels: Tensor) -> Tensor:
    """One loss for each row of outputs, by a function as in ``torch.nn.functional``."""
    kind = loss if isinstance(loss, type) else type(loss)
    if issubclass(kind, _Loss):
        raise TypeError(
            f"loss is the module {kind.__name__}, and is called with reduction='none', which "
            "modules do not take: expected a function of torch.nn.functional, such as "
            "F.cross_entropy"
        )
    return loss(outputs, labels, reduction="none")


_ALWAYS = 8  # calls that are all looked at; after them only numbers 16, 32, 64, ...
_CALLER = 5  # stack frames from a warning to the user's call of SelfAugmentation


class MixingWatch:
    """Replaces samples, and looks whether what a transform makes of the others changes.

    Random changes are repeated with the same draws of torch, NumPy and ``random``. In the first
    calls any two samples are on different sides of some split, of which one side is replaced; what
    mixes samples only now and then is found sooner or later, and refused for good. ``views``
    successive rows are of one sample.
    """

    def __init__(self, change: Callable[[Tensor], Tensor], views: int) -> None:
        self._change, self._views = change, views
        self._seen = 0
        self._is_refused = self._has_warned = False

    def look(self, rows: Tensor) -> None:
        """Refuse a transform that mixes samples, of which it is about to change these rows."""
        samples, number = len(rows) // self._views, self._seen + 1
        is_due = number <= _ALWAYS or number & (number - 1) == 0
        if samples > 1 and is_due:
            self._is_refused = self._is_refused or self._mixes(rows, samples)
        if self._is_refused:
            raise SampleMixingError(
                "the transform mixes samples: what it makes of some changed when others were "
                "replaced or left out. Each sample's views must come from that sample alone (no "
                "mixup, no statistics of the batch)."
            )
        self._seen += samples > 1

    def _mixes(self, rows: Tensor, samples: int) -> bool:
        draws = RepeatableDraws(samples, _devices_of(rows))
        everyone = torch.arange(samples, device="cpu")
        before = self._repeat(draws, rows, everyone)
        if not agree(before, self._repeat(draws, rows, everyone)):
            self._warn()
            return False
        scores = score_samples(rows, samples)
        for number, kept in enumerate(separate_samples(samples)):
            others = replace_others(kept, scores, largest=number % 2 == 0)
            after = self._repeat(draws, rows, others)
            mask = kept.repeat_interleave(self._views).to(before.device)
            if not agree(before[mask], after[mask]):
                return True
        alone = self._repeat(draws, rows, everyone[:1])
        if draws.unaligned:
            return False  # it draws otherwise for fewer
        return not agree_across_sizes(before[: self._views], alone)

    def _repeat(self, draws: RepeatableDraws, rows: Tensor, samples: Tensor) -> Tensor:
        """What becomes of these samples, with the draws that they had."""
        by_sample = rows.view(-1, self._views, *rows.shape[1:])
        with draws.running(samples.tolist()):
            return self._change(by_sample[samples.to(rows.device)].flatten(0, 1))

    def _warn(self) -> None:
        if not self._has_warned:
            warnings.warn(
                "the transform gives other views when it is repeated with the same draws of torch, "
                "NumPy and random: that it keeps samples apart cannot be verified. See to it that "
                "each sample's views come from that sample alone, or draw from torch.",
                stacklevel=_CALLER,
            )
        self._has_warned = True


def _devices_of(tensor: Tensor) -> tuple[torch.device, ...]:
    return () if tensor.device.type == "cpu" else (tensor.device,)


Transform = Callable[[Tensor], Tensor]


class SelfAugmentation:
    """The gradient of a sample is that of its mean loss over random views of it.

    Section 6 of "... via Clipping Bias Reduction" (Xiao et al. 2023), after De et al. 2022. All
    views run through the model at once and are clipped once, so the sensitivity stays what it was,
    and a step costs as much as one with ``views`` times the samples::

        views = qg.SelfAugmentation(qg.transforms.Flip(), views=8)
        engine.backward(views.losses(model, x, y, F.cross_entropy))

    Args:
        transform: changes each of the rows ``[N, ...]`` it is given in its own random way (see
            ``quietgrad.transforms``). Now and then it is verified that it keeps samples apart. That
            takes draws that can be repeated, of torch's, NumPy's or Python's global generators;
            where they cannot, a warning says so.
        views: of each sample.
        keep_original: whether the first view is the sample as it is.
    """

    def __init__(
        self, transform: Transform, views: int = 16, *, keep_original: bool = False
    ) -> None:
        if not callable(transform):
            raise TypeError(
                f"transform must be a function of a batch, got {type(transform).__name__}"
            )
        self.views = require_count("views", views, at_least=1)
        self._transform, self._keep_original = transform, keep_original
        self._watch = MixingWatch(self._changed, self.views)

    def __repr__(self) -> str:
        kept = ", the first as it is" if self._keep_original else ""
        return f"SelfAugmentation({self._transform!r}, {self.views} views{kept})"

    def __call__(self, samples: Tensor) -> Tensor:
        """Views ``[B * views, ...]`` of ``samples[B, ...]``, those of a sample side by side."""
        if self._keep_original and self.views == 1:
            return samples
        rows = self.repeated(samples)
        self._watch.look(rows)
        changed = self._changed(rows)
        if self._keep_original:
            changed = changed.clone()
            changed[:: self.views] = samples
        return changed

    def repeated(self, labels: Tensor) -> Tensor:
        """The label of each view."""
        return labels.repeat_interleave(self.views, 0)

    def mean(self, losses: Tensor) -> Tensor:
        """One loss per sample, the mean over its views: to be handed to ``backward``."""
        if losses.ndim != 1 or len(losses) % self.views:
            raise LossError(
                f"losses of shape {tuple(losses.shape)} are not {self.views} for each sample: "
                "expected one loss for each view, of a loss function with reduction='none'"
            )
        return losses.view(-1, self.views).mean(1)

    def losses(
        self, model: nn.Module, samples: Tensor, labels: Tensor, loss: Callable[..., Tensor]
    ) -> Tensor:
        """One loss per sample.

        Args:
            model: called once, with all views.
            samples: the micro-batch.
            labels: theirs.
            loss: as in ``torch.nn.functional``: called with outputs, labels and
                ``reduction="none"``.
        """
        return self.mean(per_sample(loss, model(self(samples)), self.repeated(labels)))

    def _changed(self, rows: Tensor) -> Tensor:
        changed = self._transform(rows)
        if not isinstance(changed, Tensor) or len(changed) != len(rows):
            found = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
            raise ValueError(
                f"the transform made {found} of {tuple(rows.shape)}: expected a tensor with one "
                "row for each row, in their order"
            )
        return changed
