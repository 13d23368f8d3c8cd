"""Features of images that no training changes: computed once, kept in the cache."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import TensorDataset

from quietgrad import data
from quietgrad.recipes.feature_cache import kept_features
from quietgrad.recipes.recipe import LoadData, Places, Split

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
