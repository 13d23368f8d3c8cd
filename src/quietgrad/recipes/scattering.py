"""Scattering features of images, each image normalized by itself."""

from torch import Tensor

from quietgrad.features import Scattering, standardized
from quietgrad.recipes.frozen import Extractor, feature_split
from quietgrad.recipes.recipe import LoadData

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
