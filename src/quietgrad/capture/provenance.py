"""Where tensors come from: from samples, or from nothing that belongs to any sample."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quietgrad.capture.trees import tensors_in

_MOST_COMPARED = 2**16  # entries; above, only the version that torch counts is compared


class _Place(NamedTuple):
    """Where a buffer or a parameter hangs."""

    module: nn.Module
    attribute: str
    path: str
    holder: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.path}.{self.attribute}" if self.path else self.attribute


@dataclass(frozen=True)
class _Seen:
    """A buffer as it was when the samples were handed out, or when a write was last approved."""

    place: _Place
    buffer: Tensor
    version: int
    value: Tensor | None

    @staticmethod
    def now(place: _Place, buffer: Tensor) -> _Seen:
        value = buffer.detach().clone() if _is_compared(buffer) else None
        return _Seen(place, buffer, _version(buffer), value)

    @property
    def is_unchanged(self) -> bool:
        return self.version == _version(self.buffer) and self.has_same_value

    @property
    def has_same_value(self) -> bool:
        return self.value is None or _equal(self.value, self.buffer)

    def put_back(self) -> None:
        """Undo the change, where the value before it is known."""
        self.place.holder[self.place.attribute] = self.buffer
        if self.value is not None:
            with torch.no_grad():
                self.buffer.resize_(self.value.shape).copy_(self.value)


class BufferWatch:
    """Finds the buffers that were written by a route that no operation on tensors shows.

    Operations are judged while they run (``rules.forbidden``). This is for what goes around them:
    ``.data``, numpy, code that torch compiled, a forward without gradients. Torch counts the writes
    to a tensor; small buffers on the CPU are compared entry by entry too, since an array of numpy
    that shares their memory is not counted.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.named_modules())
        self._seen: dict[tuple[nn.Module, str], _Seen] = {}
        self._names: dict[int, str] = {}

    def begin(self) -> None:
        """Samples are handed out: from here on, changes must be accounted for."""
        before, self._seen = self._seen, {}
        for place, buffer in self._held():
            key = place.module, place.attribute
            seen = before.get(key)
            if seen is None or seen.buffer is not buffer or not seen.is_unchanged:
                seen = _Seen.now(place, buffer)
            self._seen[key] = seen
        named = {_address(seen.buffer): seen.place.name for seen in self._seen.values()}
        self._names = {address: name for address, name in named.items() if address}

    def name_at(self, address: int) -> str | None:
        """The buffer whose memory begins there."""
        return self._names.get(address)

    @contextmanager
    def writing(self, written: Iterable[Tensor]) -> Iterator[None]:
        """A write that was judged happens in here. What went unseen before it stays in view."""
        addresses = {_address(tensor) for tensor in written} & set(self._names)
        approved = [
            key
            for key, seen in (self._seen.items() if addresses else ())
            if _address(seen.buffer) in addresses and seen.is_unchanged
        ]
        yield
        for key in approved:
            seen = self._seen[key]
            self._seen[key] = _Seen.now(seen.place, seen.buffer)

    def changed(self, is_constant: Callable[[Tensor], bool]) -> str | None:
        """The name of what was written or replaced unseen, and is put back; None if nothing was.

        Args:
            is_constant: tells whether a tensor is known to hold nothing of the samples: such a one
                may take the place of another.
        """
        first: str | None = None
        for place, buffer in list(self._held()):
            seen = self._seen.get((place.module, place.attribute))
            if seen is not None and seen.buffer is buffer:
                fine = seen.is_unchanged
            else:
                fine = isinstance(buffer, nn.Parameter) or is_constant(buffer)
            if not fine:
                first = first or place.name
                if seen is not None:
                    seen.put_back()
                else:
                    del place.holder[place.attribute]
        return first

    def _held(self) -> Iterator[tuple[_Place, Tensor]]:
        for path, module in self._modules:
            for holder in (module._buffers, module._parameters):
                for attribute, held in holder.items():
                    # Weights in training are the user's to load: what data may write to them while
                    # a forward runs is judged there.
                    if held is not None and not held.requires_grad:
                        yield _Place(module, attribute, path, holder), held


def _is_compared(buffer: Tensor) -> bool:
    is_plain = buffer.layout is torch.strided and not buffer.is_quantized
    return is_plain and buffer.device.type == "cpu" and buffer.numel() <= _MOST_COMPARED


def _equal(one: Tensor, other: Tensor) -> bool:
    """Bit by bit: a NaN that stays is no change."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _version(buffer: Tensor) -> int:
    return 0 if buffer.is_inference() else buffer._version


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


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
