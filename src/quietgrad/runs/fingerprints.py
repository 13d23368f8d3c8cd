"""Whether a run goes on with the data it was begun with.

A plain digest of private data would confirm guesses about them. So it is keyed, and the key and the
digest are kept in the checkpoint alone, which stays with whoever trains and has the data anyway.
"""

import hmac
import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from quietgrad.runs.writing import RunFolderError

FIELD = "data"
_KEY_BYTES = 32


def kept_fingerprint(state: Mapping[str, Any] | None, data: object) -> dict[str, Any]:
    """What a checkpoint is to hold about the data of its run.

    Args:
        state: the checkpoint to go on from, if there is one.
        data: to train on. Only tensors in memory are looked at: anything else gives no fingerprint.

    Returns:
        To be saved beside the engine's state; empty for data that is not looked at.

    Raises:
        RunFolderError: the run was begun with other data.
    """
    found = None if state is None else state.get(FIELD)
    if found is None:
        return _fingerprint(secrets.token_bytes(_KEY_BYTES), data)
    try:
        key = bytes.fromhex(found["key"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            "the checkpoint was altered: what it says about the data is no fingerprint. Restore a"
            " copy of it"
        ) from error
    made = _fingerprint(key, data)
    said = made.get(FIELD, {}).get("digest", "")
    if not hmac.compare_digest(said, str(found.get("digest"))):
        raise RunFolderError(
            "the training data are not those that the run was begun with: a guarantee is about one"
            " data set. Restore them, or begin in another folder. (Features that were computed"
            " anew, on another machine, may differ in their last digits: keep the cache.)"
        )
    return made


def _fingerprint(key: bytes, data: object) -> dict[str, Any]:
    if not _is_in_memory(data):
        return {}
    digest = hmac.new(key, digestmod="sha256")
    for part in _parts(data):
        digest.update(part)
    return {FIELD: {"key": key.hex(), "digest": digest.hexdigest()}}


def _is_in_memory(data: object) -> bool:
    if isinstance(data, Subset):
        return _is_in_memory(data.dataset)
    return isinstance(data, TensorDataset)


def _parts(data: Any) -> Iterator[Any]:
    if isinstance(data, Subset):
        yield json.dumps(["subset", list(data.indices)]).encode()
        yield from _parts(data.dataset)
    else:
        for tensor in data.tensors:
            yield json.dumps([str(tensor.dtype), list(tensor.shape)]).encode()
            yield _bytes_of(tensor)


def _bytes_of(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
