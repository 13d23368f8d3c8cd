"""What must be the same on all ranks, in a form that can be compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from quietgrad._version import __version__

_COMPARED = 8  # elements of the data


def list_facts(
    model: nn.Module, dataset: Dataset[Any], settings: Mapping[str, Any], part: str = ""
) -> dict[str, object]:
    """By names that people know; large things as hashes.

    Args:
        model: or the part of it that some ranks have.
        dataset: the whole.
        settings: of the engine.
        part: which part it is, in words.
    """
    described = {
        name: (tuple(p.shape), str(p.dtype), p.requires_grad)
        for name, p in model.named_parameters()
    }
    return {
        "the version of quietgrad": __version__,
        "the version of torch": torch.__version__,
        f"the model's parameters{part}": described,
        **{f"the setting {name}": _plain(value) for name, value in settings.items()},
        "the data": _digest_data(dataset),
    }


def _plain(value: object) -> str:
    return json.dumps(value, default=repr, sort_keys=True)


def digest_tensors(tensors: Mapping[str, Any]) -> str:
    """Of names and contents."""
    digest = hashlib.sha256()
    for name, value in tensors.items():
        digest.update(name.encode())
        _add(digest, value)
    return digest.hexdigest()[:16]


def _add(digest: Any, value: object) -> None:
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        digest.update(repr((tuple(dense.shape), dense.dtype)).encode())
        whole = dense.cpu().contiguous().reshape(-1)
        digest.update(whole.view(torch.uint8).numpy().data if whole.numel() else b"")
    else:
        digest.update(repr(value).encode())


def _digest_data(dataset: Any) -> str | None:
    """Of a few elements; None if an element is another one each time that it is read."""
    size = len(dataset)
    places = sorted({size * i // _COMPARED for i in range(_COMPARED)} | {size - 1})
    first, second = (_digest_elements(dataset, places) for _ in range(2))
    return first if first == second else None


def _digest_elements(dataset: Any, places: list[int]) -> str:
    digest = hashlib.sha256()
    for place in places:
        for leaf in tree_leaves(dataset[place]):
            _add(digest, leaf)
    return digest.hexdigest()[:16]
