"""What stands for the losses where a model is cut into stages, and only the last one knows them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from quietgrad.capture.choice import new_generator
from quietgrad.errors import SampleMixingError, StrayGradientError


def stand_in_losses(outputs: Any, batch: int) -> Tensor:
    """For each sample a number that depends on all of its outputs, ``[batch]``.

    It is their product with random numbers. What gradients a later stage will send is not known
    here, but whatever belongs to one sample alone for these does so for those.
    """
    parts: list[Tensor] = []
    generator = new_generator()
    for output in tree_leaves(outputs):
        if not isinstance(output, Tensor):
            continue
        if not output.ndim or len(output) != batch:
            raise SampleMixingError(
                f"a stage of the pipeline returns a tensor of shape {tuple(output.shape)} for a "
                f"micro-batch of {batch} samples: expected tensors whose first dimension runs over "
                "the samples. What all samples share would reach the next stage unseen; compute it "
                "there."
            )
        if output.requires_grad:
            drawn = torch.randn(output.shape, generator=generator)
            part = output * drawn.to(output.device, output.dtype)
            parts.append(part.flatten(1).sum(1, dtype=torch.promote_types(part.dtype, torch.float)))
    if not parts:
        raise StrayGradientError(
            "a stage of the pipeline returns nothing that depends on its trainable parameters and "
            "requires gradients: expected at least one such tensor. Put a frozen stage into the "
            "stage behind it, or train some of its parameters."
        )
    return sum(parts[1:], parts[0])


def take_rows(content: Any, rows: slice, count: int) -> Any:
    """Of tensors with so many rows these; all else as it is."""

    def take(leaf: Any) -> Any:
        has_rows = isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == count
        return leaf[rows] if has_rows else leaf

    return tree_map(take, content)
