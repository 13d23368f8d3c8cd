"""Features of images that no training changes: computed once, kept in the cache."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.data.fetching import cache_folder
from quietgrad.recipes.recipe import LoadData, Places, Split

Extract = Callable[[Tensor], Tensor]
_AT_A_TIME = 250


def feature_split(name: str, kind: str, extractor: Callable[[], Extract]) -> LoadData:
    """Loads features of a data set of images.

    Args:
        name: of the data set.
        kind: of the features, with all they depend on: the file that keeps them is named so.
        extractor: makes the function from images of bytes to rows of features. It looks at each
            image alone: a statistic of several would be read from private data.
    """

    def load_data(places: Places) -> Split:
        images = data.load(name, places.data)
        parts = (("train", images.train_images), ("test", images.test_images))
        train, test = (_features(f"{name} {part}", kind, extractor, all_) for part, all_ in parts)
        return Split(
            train=TensorDataset(train, images.train_labels),
            test=TensorDataset(test, images.test_labels),
        )

    return load_data


def _features(title: str, kind: str, extractor: Callable[[], Extract], images: Tensor) -> Tensor:
    path = _kept_as(kind, images)
    if path.is_file():
        return load_file(path)["features"].float()
    extract = extractor()
    console = Console(stderr=True)
    parts = track(images.split(_AT_A_TIME), f"{kind} of {title}", console=console)
    with torch.no_grad():
        features = torch.cat([extract(part).half() for part in parts])
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    save_file({"features": features}, unfinished)
    unfinished.replace(path)
    return features.float()


def _kept_as(kind: str, images: Tensor) -> Path:
    """Named after the images themselves, so that other images never get these features."""
    digest = hashlib.sha256(images.contiguous().numpy().tobytes()).hexdigest()
    return cache_folder() / "features" / f"{kind}-{digest[:16]}.safetensors"
