"""Watches a model's buffers: what changes in them while samples are at hand must be known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_MOST_COMPARED = 2**16  # entries; above, only the version that torch counts is compared


@dataclass(frozen=True)
class _Seen:
    """A buffer as it was when the samples were handed out, or when a write was last approved."""

    module: nn.Module
    attribute: str
    path: str
    buffer: Tensor
    version: int
    value: Tensor | None

    @staticmethod
    def now(module: nn.Module, attribute: str, path: str, buffer: Tensor) -> _Seen:
        value = buffer.detach().clone() if _is_compared(buffer) else None
        return _Seen(module, attribute, path, buffer, _version(buffer), value)

    @property
    def name(self) -> str:
        return f"{self.path}.{self.attribute}" if self.path else self.attribute

    @property
    def is_unchanged(self) -> bool:
        return self.version == _version(self.buffer) and self.has_same_value

    @property
    def has_same_value(self) -> bool:
        return self.value is None or _equal(self.value, self.buffer)

    def put_back(self) -> None:
        """Undo the change, where the value before it is known."""
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
        for path, module, attribute, buffer in self._buffers():
            seen = before.get((module, attribute))
            if seen is None or seen.buffer is not buffer or not seen.is_unchanged:
                seen = _Seen.now(module, attribute, path, buffer)
            self._seen[module, attribute] = seen
        named = {_address(seen.buffer): seen.name for seen in self._seen.values()}
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
            self._seen[key] = _Seen.now(seen.module, seen.attribute, seen.path, seen.buffer)

    def changed(self) -> str | None:
        """The name of a buffer that was written unseen; its value is put back. None if none was."""
        found = [
            seen
            for _, module, attribute, buffer in self._buffers()
            if (seen := self._seen.get((module, attribute))) is not None
            and seen.buffer is buffer
            and not seen.is_unchanged
        ]
        for seen in found:
            seen.put_back()
        return found[0].name if found else None

    def _buffers(self) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
        for path, module in self._modules:
            for attribute, buffer in module._buffers.items():
                if buffer is not None:
                    yield path, module, attribute, buffer


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
