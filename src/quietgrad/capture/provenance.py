"""Where tensors come from: from samples, or from nothing that belongs to any sample."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from quietgrad.capture.buffers import BufferWatch
from quietgrad.capture.trees import tensors_in


class Provenance:
    """Tells constants from data, for the choice of a rule; exactness never depends on the answer.

    Constants are buffers, frozen weights, and what is made from them or from nothing (positions,
    masks). What is taken for a constant is pulled back through as part of a computation on
    parameters alone; what is taken for data is mapped to samples. Both are exact or refused, so an
    unlucky guess can cost time or a refusal, not privacy.

    Attributes:
        watch: finds writes to buffers that no operation shows.
    """

    def __init__(self, model: nn.Module) -> None:
        self.watch = BufferWatch(model)
        self._buffers = {id(buffer): buffer for buffer in model.buffers()}
        self._originals = {
            (module, attribute): (buffer, f"{path}.{attribute}" if path else attribute)
            for path, module in model.named_modules()
            for attribute, buffer in module._buffers.items()
        }
        held = [*model.named_buffers(), *model.named_parameters()]
        self._storages = {t.untyped_storage().data_ptr(): name for name, t in held if t.numel()}
        self._seen: dict[int, tuple[weakref.ref[Tensor], bool]] = {}

    def note(self, tensors: Iterable[Tensor], *, constant: bool) -> None:
        """Remember what tensors are, for as long as they live. Those with a graph are data."""
        for tensor in tensors:
            if not tensor.requires_grad:
                self._seen[id(tensor)] = weakref.ref(tensor), constant

    def note_arguments(self, arguments: Any, batch: int) -> None:
        """What a model is called with is data, unless it is plainly shared by all samples."""
        for leaf in tensors_in(arguments):
            if self._noted(leaf) is None:
                self.note([leaf], constant=_is_shared(leaf, batch))
        # A list with one tensor for each sample is data, whatever the tensors' shapes.
        for part in arguments if isinstance(arguments, (tuple, list)) else ():
            if isinstance(part, (tuple, list)) and len(part) == batch > 1:
                self.note(tensors_in(part), constant=False)

    def is_constant(self, tensor: Tensor, batch: int) -> bool:
        """Whether ``tensor`` carries nothing of the ``batch`` samples, as far as is known."""
        if tensor.requires_grad:
            return False
        if isinstance(tensor, nn.Parameter) or self._buffers.get(id(tensor)) is tensor:
            return True
        noted = self._noted(tensor)
        # One that comes from nowhere was cached by the model, unless it has room for all samples.
        return not _has_room(tensor, batch) if noted is None else noted

    def is_known_constant(self, tensor: Tensor) -> bool:
        """Whether it was seen to be made of nothing that belongs to a sample."""
        return self._buffers.get(id(tensor)) is tensor or self._noted(tensor) is True

    def name_in_model(self, tensor: Any) -> str | None:
        """The buffer or parameter whose memory ``tensor`` shares."""
        if not isinstance(tensor, Tensor) or not tensor.numel():
            return None
        address = tensor.untyped_storage().data_ptr()
        return self._storages.get(address) or self.watch.name_at(address)

    def original(self, module: nn.Module, attribute: str) -> tuple[Tensor | None, str]:
        """A buffer as it was when the model was attached, and its name."""
        return self._originals.get((module, attribute), (None, attribute))

    def forget_dead(self) -> None:
        """Drop entries of tensors that are gone."""
        self._seen = {key: entry for key, entry in self._seen.items() if entry[0]() is not None}

    def _noted(self, tensor: Tensor) -> bool | None:
        reference, constant = self._seen.get(id(tensor), (None, False))
        return constant if reference is not None and reference() is tensor else None


def _is_shared(tensor: Tensor, batch: int) -> bool:
    # Ids of positions often come as a batch of one; data with one time step in front does not.
    one_row = tensor.ndim > 1 and tensor.shape[0] == 1 < batch
    return (one_row and not tensor.is_floating_point()) or not _has_room(tensor, batch)


def _has_room(tensor: Tensor, batch: int) -> bool:
    return batch == 1 or any(size % batch == 0 for size in tensor.shape)
