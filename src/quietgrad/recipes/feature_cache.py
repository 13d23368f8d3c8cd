"""Features in the cache: taken if they are whole and of these very images, else made anew."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from quietgrad.data.fetching import made_cache

_NAME = "features"


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors: their names, kinds, shapes and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def kept_features(kind: str, images: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """The features of images, from the cache or made and kept there.

    Args:
        kind: of the features, with all they depend on besides the images.
        images: they are of.
        make: computes them, a row for each image.

    Raises:
        DataError: there is no folder to keep them in.
    """
    made_of = {"kind": kind, "images": digest_of({"images": images})}
    path = made_cache("features") / f"{kind}-{made_of['images'][:16]}.safetensors"
    if path.is_file():
        found = _read(path, made_of)
        if found is not None and len(found) == len(images):
            return found
        _say(f"{path} is damaged, or of an earlier version: its features are computed anew")
    features = make()
    if len(features) != len(images):
        raise ValueError(
            f"{kind!r} made {len(features)} rows of features of {len(images)} images: expected one "
            "row for each"
        )
    _keep(path, features, made_of)
    return features


def _read(path: Path, made_of: Mapping[str, str]) -> Tensor | None:
    """None for what is not whole, or of anything else."""
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata()
            features: Tensor = file.get_tensor(_NAME)
    except Exception:  # a damaged file can fail anywhere
        return None
    return features if told == _told(features, made_of) else None


def _keep(path: Path, features: Tensor, made_of: Mapping[str, str]) -> None:
    """All of it or nothing. Without it the next run takes longer, and this one can go on."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            whole = Path(temporary) / path.name
            save_file({_NAME: features}, whole, _told(features, made_of))
            whole.replace(path)
    except (OSError, SafetensorError) as error:
        _say(f"{path} cannot be kept ({error}): its features are computed again next time")


def _told(features: Tensor, made_of: Mapping[str, str]) -> dict[str, str]:
    return {**made_of, _NAME: digest_of({_NAME: features})}


def _say(line: str) -> None:
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
