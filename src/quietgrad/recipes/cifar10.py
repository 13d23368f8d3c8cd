"""CIFAR-10: ResNet20, plain and normalization-enhanced, and linear models of fixed features."""

import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad import data
from quietgrad.features import standardized
from quietgrad.nn import imagenet_normalized, resnet18, resnet20
from quietgrad.recipes.feature_cache import digest_of
from quietgrad.recipes.frozen import Extractor, feature_split
from quietgrad.recipes.images import image_split, made_images
from quietgrad.recipes.recipe import Recipe, Reference, Smoke
from quietgrad.recipes.scattering import features_of_size, scattering_split
from quietgrad.recipes.settings import Settings
from quietgrad.transforms import Chain, Crop, Flip

_BIAS = '"A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction"'
_AUTOMATIC = '"Automatic Clipping", Table 1'
_PSAC = '"Per-Sample Adaptive Clipping", Table 2'
_SIDE, _RESNET18_FEATURES = 96, 512
_SIMCLR = "SimCLRv2 features, 4,096 of them"
_OUTER = "radius 5 and learning rate 0.1, as here for abadi"
_INNER_OUTER = f"inner-outer momentum, K0 = 2 and gamma0 = 0.08 (--inner-steps 2); {_OUTER}"
_TRAMER = 'Tramer and Boneh, "Differentially Private Learning Needs Better Features", Table 1'


def cifar10_resnet20() -> Recipe:
    """The enhanced network: weights standardized, normalization behind every activation."""
    return _resnet20(
        "cifar10-resnet20",
        enhanced=True,
        reference=Reference(f"{_BIAS}, Table 1", "abadi", 8.0, 0.745, note=_INNER_OUTER),
    )


def cifar10_resnet20_plain() -> Recipe:
    """The usual network, with GroupNorm in place of BatchNorm."""
    return _resnet20(
        "cifar10-resnet20-plain",
        enhanced=False,
        reference=Reference(f"{_BIAS}, Table 2", "abadi", 8.0, 0.612, note=_OUTER),
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
        smoke=Smoke(made_images(_RESNET18_FEATURES)),
        references=tuple(
            Reference(source, clipping, epsilon, value, note=_SIMCLR + more)
            for source, clipping, epsilon, value, more in (
                (_AUTOMATIC, "abadi", 2.0, 0.9244, ""),
                (_AUTOMATIC, "auto-s", 2.0, 0.9270, ""),
                (_PSAC, "psac", 2.0, 0.9278, "; abadi 92.47 and auto-s 92.72 in the same table"),
                (_AUTOMATIC, "none", None, 0.9442, ""),
            )
        ),
    )


def cifar10_scattering() -> Recipe:
    """60 epochs in batches of 8,192 at epsilon 3."""
    size = features_of_size(32, channels=3)
    return Recipe(
        name="cifar10-scattering",
        summary="colour images, a linear model of scattering features",
        data="fetch `cifar10`",
        load_data=scattering_split("cifar10", 32),
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
        smoke=Smoke(made_images(size)),
        references=(Reference(_TRAMER, "abadi", 3.0, 0.67),),
    )


def _resnet18_features() -> Extractor:
    """Of a network that has seen ImageNet, which is public; each image by itself."""
    weights = data.pretrained_weights("resnet18")
    network = resnet18(weights=weights, frozen=True)

    def extract(images: Tensor) -> Tensor:
        normalized = imagenet_normalized(images)
        larger = F.interpolate(normalized, size=_SIDE, mode="bilinear", align_corners=False)
        return standardized(network.features(larger))

    return Extractor(f"resnet18-{_SIDE}-{digest_of(weights)[:16]}", extract)


def _resnet20(name: str, *, enhanced: bool, reference: Reference) -> Recipe:
    kind = "enhanced" if enhanced else "plain"
    return Recipe(
        name=name,
        summary=f"colour images, 32x32, {kind} ResNet20",
        data="fetch `cifar10`",
        load_data=image_split("cifar10"),
        build_model=lambda places: resnet20(enhanced=enhanced),
        settings=Settings(
            epochs=60,
            batch_size=2000,
            learning_rate=0.5,
            momentum=0.9,
            epsilon=8.0,
            delta=1e-5,
            physical_batch_size=64,
        ),
        tuned={"abadi": {"learning_rate": 0.1, "radius": 5.0}},  # the paper's
        smoke=Smoke(made_images(3, 32, 32, samples=8), changes={"batch_size": 4}),
        references=(reference,),
        transform=Chain(Flip(), Crop(4)),
    )
