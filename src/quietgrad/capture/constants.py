"""Which tensors carry nothing of any sample: buffers, frozen weights, positions, masks, caches."""

from __future__ import annotations

import weakref

from torch import Tensor, nn


class Constants:
    """Tells constants from data, for the choice of a rule; exactness never depends on the answer.

    What is taken for a constant is pulled back through as part of a parameter-only computation;
    what is taken for data is mapped to samples. Both are exact or refused, so an unlucky guess can
    cost time or a refusal, not privacy.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = {id(buffer): buffer for buffer in model.buffers()}
        self._seen: dict[int, weakref.ref[Tensor]] = {}

    def add(self, tensor: Tensor) -> None:
        """Remember a tensor made from constants, for as long as it lives."""
        self._seen[id(tensor)] = weakref.ref(tensor)

    def contains(self, tensor: Tensor, batch: int | None) -> bool:
        """Whether ``tensor`` is a constant in a batch of ``batch`` samples, as far as is known."""
        if tensor.requires_grad:
            return False
        if isinstance(tensor, nn.Parameter) or self._buffers.get(id(tensor)) is tensor:
            return True
        reference = self._seen.get(id(tensor))
        if reference is not None and reference() is tensor:
            return True
        if batch is None or batch == 1 or any(size % batch == 0 for size in tensor.shape):
            return False
        self.add(tensor)  # no dimension can hold the samples: cached by the model, say
        return True

    def forget_dead(self) -> None:
        """Drop entries of tensors that are gone."""
        self._seen = {key: ref for key, ref in self._seen.items() if ref() is not None}
