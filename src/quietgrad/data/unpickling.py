"""Tensors out of a raw pickle, by an unpickler that can do nothing else.

A pickle names the functions that are called to build its objects, and the plain unpickler calls
whatever is named. This one knows the three names a state dict needs and refuses all others, and
what it calls for them is its own.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from quietgrad.errors import DataError


def unpickled_state_dict(content: bytes) -> dict[str, Tensor]:
    """The tensors of a pickled state dict, by name.

    Raises:
        DataError: it holds anything else, names any other function, or is damaged.
    """
    try:
        found = _TensorsOnly(io.BytesIO(content)).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail anywhere
        raise DataError(f"not a pickled state dict, or a damaged one: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"expected a pickled dict of tensors, found {type(found).__name__}")
    for name, tensor in found.items():
        if not isinstance(name, str) or type(tensor) is not Tensor:
            raise DataError(f"the pickle holds {type(tensor).__name__} {name!r}: expected tensors")
    return dict(found)


class _TensorsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full = f"{module}.{name}"
        if full == "collections.OrderedDict":
            return OrderedDict
        if full == "torch._utils._rebuild_tensor_v2":
            return lambda *given: _tensor(*given)
        if full == "torch.storage._load_from_bytes":
            return lambda content: _storage(content)
        raise DataError(
            f"the pickle calls {full}, which building tensors does not need: it was not run. Use "
            "weights from a source you trust, saved as safetensors"
        )


def _storage(content: bytes) -> Any:
    """The stock function of this name would unpickle whatever it is given."""
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _tensor(
    storage: Any, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *rest: object
) -> Tensor:
    """Without the hooks and flags that a pickle may carry along."""
    if not isinstance(storage, torch.storage.TypedStorage):
        raise DataError(f"the pickle builds a tensor from {type(storage).__name__}, not a storage")
    untyped = storage._untyped_storage  # as torch itself does it: the public way warns
    _require_within(untyped.nbytes() // storage.dtype.itemsize, offset, size, stride)
    return torch.empty(0, dtype=storage.dtype).set_(untyped, offset, size, stride).clone()


def _require_within(
    count: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> None:
    """A storage that is too small would grow, by memory that was never written."""
    steps = [(length - 1) * step for length, step in zip(size, stride, strict=True)]
    last = offset + sum(steps) if all(size) else offset - 1
    if min(offset, *size, *stride, 0) < 0 or last >= count:
        raise DataError(
            f"the pickle builds a tensor of size {size}, stride {stride} at {offset} from "
            f"{count} values: it is damaged"
        )
