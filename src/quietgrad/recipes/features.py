"""Recipes with a linear model of fixed features, and the cache that keeps the features.

Features are taken from the cache if they are whole and of these very images, and computed anew
otherwise.
"""

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from quietgrad._progress import followed
from quietgrad.data.cache import made_cache
from quietgrad.data.datasets import load
from quietgrad.data.pretrained import pretrained_weights
from quietgrad.features import Scattering, standardized
from quietgrad.nn.models import imagenet_normalized, resnet18
from quietgrad.recipes.images import compared, synthetic_images
from quietgrad.recipes.recipe import LoadData, Places, Recipe, Reference, Settings, Smoke, Split

_NAME = "features"
_SIDE, _RESNET18_FEATURES = 96, 512
_TRAMER = 'Tramer and Boneh, "Differentially Private Learning Needs Better Features", Table 1'


def fashion_mnist_scattering() -> Recipe:
    """40 epochs in batches of 8,192 at epsilon 3."""
    size = _scattering_size(28)
    return Recipe(
        name="fashion-mnist-scattering",
        summary="pieces of clothing, a linear model of scattering features",
        data="fetch `fashion-mnist`",
        load_data=feature_split("fashion-mnist", lambda: _scattering(28)),
        build_model=lambda places: nn.Linear(size, 10),
        settings=Settings(
            epochs=40, batch_size=8192, learning_rate=1.6, momentum=0.9, epsilon=3.0, delta=1e-5
        ),
        smoke=Smoke(synthetic_images(size)),
        references=(Reference(_TRAMER, "abadi", 3.0, 0.897, tolerance=0.002),),
    )


def cifar10_scattering() -> Recipe:
    """60 epochs in batches of 8,192 at epsilon 3."""
    size = _scattering_size(32, channels=3)
    return Recipe(
        name="cifar10-scattering",
        summary="colour images, a linear model of scattering features",
        data="fetch `cifar10`",
        load_data=feature_split("cifar10", lambda: _scattering(32)),
        build_model=lambda places: nn.Linear(size, 10),
        settings=Settings(
            epochs=60,
            batch_size=8192,
            learning_rate=1.6,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-5,
            physical_batch_size=2048,
        ),
        smoke=Smoke(synthetic_images(size)),
        references=(Reference(_TRAMER, "abadi", 3.0, 0.67),),
    )


def cifar10_features() -> Recipe:
    """50 epochs in batches of 1,024 at epsilon 2."""
    return Recipe(
        name="cifar10-features",
        summary="colour images, a linear model of frozen ResNet-18 features",
        data="fetch `cifar10`, `resnet18`",
        load_data=feature_split("cifar10", _resnet18_features),
        build_model=lambda places: nn.Linear(_RESNET18_FEATURES, 10),
        settings=Settings(
            epochs=50,
            batch_size=1024,
            learning_rate=0.1,
            ordinary_learning_rate=0.01,
            momentum=0.9,
            epsilon=2.0,
            delta=1e-5,
        ),
        tuned={"abadi": {"learning_rate": 1.0, "radius": 0.1}},
        smoke=Smoke(synthetic_images(_RESNET18_FEATURES)),
        references=compared(
            2.0,
            (0.9244, 0.9270, 0.9278, 0.9442),
            note="SimCLRv2 features, 4,096 of them",
            psac_note="abadi 92.47 and auto-s 92.72 in the same table",
        ),
    )


@dataclass(frozen=True)
class Extractor:
    """Computes features of images.

    Attributes:
        kind: of the features, with all they depend on, weights too: the file that keeps them is
            named so.
        extract: from images of bytes to rows of features. It looks at each image alone: a
            statistic of several would be read from private data.
    """

    kind: str
    extract: Callable[[Tensor], Tensor]


def _scattering_size(side: int, channels: int = 1) -> int:
    """81 features, for two scales and eight angles, of each square of 4x4 pixels."""
    return 81 * channels * (side // 4) ** 2


def _scattering(side: int) -> Extractor:
    scattering = Scattering((side, side))
    groups = 27  # of channels that are normalized together

    def extract(images: Tensor) -> Tensor:
        return standardized(scattering(images.float() / 255), groups=groups).flatten(1)

    return Extractor(f"scattering-2-8-{groups}", extract)


def _resnet18_features() -> Extractor:
    """Of a network trained on ImageNet, which is public; each image by itself."""
    weights = pretrained_weights("resnet18")
    network = resnet18(weights=weights, frozen=True)

    def extract(images: Tensor) -> Tensor:
        normalized = imagenet_normalized(images)
        larger = F.interpolate(normalized, size=_SIDE, mode="bilinear", align_corners=False)
        return standardized(network.features(larger))

    return Extractor(f"resnet18-{_SIDE}-{_digest(weights)[:16]}", extract)


def feature_split(name: str, extractor: Callable[[], Extractor]) -> LoadData:
    """Loads features of a data set of images; the extractor is built after the images are read."""

    def load_data(places: Places) -> Split:
        images = load(name, places.data)
        made = extractor()
        train = _features(f"{name} train", made, images.train_images)
        test = _features(f"{name} test", made, images.test_images)
        return Split.of_columns((train, images.train_labels), (test, images.test_labels))

    return load_data


def _features(title: str, extractor: Extractor, images: Tensor) -> Tensor:
    def make() -> Tensor:
        parts = followed(images.split(250), f"Computing {extractor.kind} of {title}")
        with torch.no_grad():
            return torch.cat([extractor.extract(part).half() for part in parts])

    return _kept_features(extractor.kind, images, make).float()


def _kept_features(kind: str, images: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """The features of images, from the cache or computed and kept there."""
    made_of = {"kind": kind, "images": _digest({"images": images})}
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
    """The features; None if the file is not whole, or of anything else."""
    try:
        with safe_open(path, framework="pt") as file:
            stated = file.metadata()
            features: Tensor = file.get_tensor(_NAME)
    except Exception:  # a damaged file can fail anywhere
        return None
    return features if stated == _metadata(features, made_of) else None


def _keep(path: Path, features: Tensor, made_of: Mapping[str, str]) -> None:
    """All of it or nothing. Without it the next run takes longer, and this one can go on."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            whole = Path(temporary) / path.name
            save_file({_NAME: features}, whole, _metadata(features, made_of))
            whole.replace(path)
    except (OSError, SafetensorError) as error:
        _say(f"{path} cannot be kept ({error}): its features are computed again next time")


def _metadata(features: Tensor, made_of: Mapping[str, str]) -> dict[str, str]:
    return {**made_of, _NAME: _digest({_NAME: features})}


def _say(line: str) -> None:
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors: their names, kinds, shapes and values."""
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
