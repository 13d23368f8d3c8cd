"""Features in the cache: taken if they are whole and of these very images, else made anew."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.data.cache import made_cache
from quietgrad.features import Scattering, standardized
from quietgrad.recipes.recipe import LoadData, Places, Split

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


_AT_A_TIME = 250


@dataclass(frozen=True)
class Extractor:
    """Makes features of images.

    Attributes:
        kind: of the features, with all they depend on, weights too: the file that keeps them is
            named so.
        extract: from images of bytes to rows of features. It looks at each image alone: a
            statistic of several would be read from private data.
    """

    kind: str
    extract: Callable[[Tensor], Tensor]


def feature_split(name: str, extractor: Callable[[], Extractor]) -> LoadData:
    """Loads features of a data set of images.

    Args:
        name: of the data set.
        extractor: makes what makes the features, once the images are there.
    """

    def load_data(places: Places) -> Split:
        images = data.load(name, places.data)
        made = extractor()
        return Split(
            train=TensorDataset(
                _features(f"{name} train", made, images.train_images), images.train_labels
            ),
            test=TensorDataset(
                _features(f"{name} test", made, images.test_images), images.test_labels
            ),
        )

    return load_data


def _features(title: str, extractor: Extractor, images: Tensor) -> Tensor:
    def make() -> Tensor:
        console = Console(stderr=True)
        parts = track(images.split(_AT_A_TIME), f"{extractor.kind} of {title}", console=console)
        with torch.no_grad():
            return torch.cat([extractor.extract(part).half() for part in parts])

    return kept_features(extractor.kind, images, make).float()


_CHANNELS = 81  # for two scales and eight angles
_GROUPS = 27  # of channels that are normalized together
_STEP = 4


def scattering_split(name: str, size: int) -> LoadData:
    """Loads scattering features of a data set of square images."""
    return feature_split(name, lambda: _extractor(size))


def features_of_size(size: int, channels: int = 1) -> int:
    """How many features an image has."""
    return _CHANNELS * channels * (size // _STEP) ** 2


def _extractor(size: int) -> Extractor:
    scattering = Scattering((size, size))

    def extract(images: Tensor) -> Tensor:
        features = scattering(images.float() / 255)
        return standardized(features, groups=_GROUPS).flatten(1)

    return Extractor(f"scattering-2-8-{_GROUPS}", extract)
