"""What is timed: a model, one physical batch of random data, and a loss for every sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Layout = Literal["default", "channels-last"]


def called(model: nn.Module, *inputs: Tensor) -> Tensor:
    """The predictions of a model that simply returns them."""
    predictions: Tensor = model(*inputs)
    return predictions


@dataclass(frozen=True)
class Workload:
    """A model and one physical batch. Always classification: peers need to know the criterion.

    Attributes:
        model: in training mode; what requires no gradient is frozen.
        inputs: what the model is called with, samples first.
        targets: classes, `[B]`, or `[B, T]` for one at every position.
        predict: calls a model, perhaps one that wraps `model`, and returns logits `[B, C, ...]`.
        has_images: whether the layout in memory can be chosen.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...]
    targets: Tensor
    predict: Callable[..., Tensor] = called
    has_images: bool = False

    def losses(self) -> Tensor:
        """One loss per sample, `[B]`."""
        predictions = self.predict(self.model, *self.inputs)
        losses = F.cross_entropy(predictions, self.targets, reduction="none")
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses

    @property
    def batch_size(self) -> int:
        """Number of samples in the physical batch."""
        return len(self.targets)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters to train."""
        return [each for each in self.model.parameters() if each.requires_grad]

    def in_layout(self, layout: Layout) -> Workload:
        """The same, with images and filters laid out so. The model is changed in place."""
        if layout == "default":
            return self
        model: Any = self.model
        channels_last: Any = {"memory_format": torch.channels_last}
        inputs = tuple(each.to(**channels_last) if each.ndim == 4 else each for each in self.inputs)
        return replace(self, model=model.to(**channels_last), inputs=inputs)

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layouts worth trying."""
        return ("default", "channels-last") if self.has_images else ("default",)
