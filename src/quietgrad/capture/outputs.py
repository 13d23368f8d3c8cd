"""Where the samples are in what a model returns: the losses say it, sizes do not.

Which rows of a tensor belong to which sample cannot be read off its shape where several dimensions
could hold the samples. But when only some samples' losses are back-propagated, the gradient that
arrives at an output is zero in the rows of all others: what a probe refutes is struck out.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from quietgrad.capture.layout import Placement, refuted


class OutputRows:
    """One output of a model call, and where its samples can be after all probes so far.

    Args:
        output: as the model returned it.
        seeded: tells, while a probe runs, which samples' losses are back-propagated; None if none.
    """

    def __init__(self, output: Tensor, seeded: Callable[[], Tensor | None]) -> None:
        self._seeded = seeded
        self._touched: list[tuple[Tensor, Tensor]] = []
        self.is_probed = output.requires_grad
        if output.requires_grad:
            output.register_hook(self._observe)

    @property
    def was_reached(self) -> bool:
        """Whether a loss depends on it."""
        return bool(self._touched)

    def allows(self, place: Placement, batch: int) -> bool:
        """Whether no probe has shown that the samples are elsewhere."""
        return not any(
            place.dim >= touched.ndim or refuted(place, touched, seeded, batch)
            for touched, seeded in self._touched
        )

    def may_belong_to(self, sample: int) -> bool:
        """Whether no other sample's loss was seen to depend on it."""
        return all(bool(seeded[sample]) for _, seeded in self._touched)

    def holds_samples(self, batch: int) -> bool:
        """Whether probes have seen it fall apart into rows of single samples."""
        if not self._touched:
            return False
        dims = [d for d, size in enumerate(self._touched[0][0].shape) if size % batch == 0]
        places = [Placement(dim, major) for dim in dims for major in (True, False)]
        return any(self.allows(place, batch) for place in places)

    def _observe(self, grad: Tensor) -> None:
        seeded = self._seeded()
        if seeded is not None and grad is not None:
            touched = grad.ne(0) & grad.eq(grad)  # a non-finite sample proves nothing
            if touched.any():
                self._touched.append((touched, seeded))
