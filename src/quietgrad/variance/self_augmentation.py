"""Several views of each sample, clipped as one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from quietgrad._checks import require_count
from quietgrad.errors import LossError
from quietgrad.variance.losses import per_sample
from quietgrad.variance.mixing import MixingWatch

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
