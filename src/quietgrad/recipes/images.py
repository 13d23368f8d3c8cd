"""Recipes on images: digits, MNIST, Fashion-MNIST, CIFAR-10, ImageNette, CelebA, SVHN, a ViT."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from quietgrad.data.datasets import load
from quietgrad.errors import MissingExtraError
from quietgrad.nn.models import resnet9, resnet20, tanh_cnn_28
from quietgrad.recipes.encoders import Logits, transformers
from quietgrad.recipes.recipe import (
    AUTOMATIC_CLIPPING,
    CLIPPING_BIAS,
    INNER_OUTER,
    PSAC,
    BuildModel,
    LoadData,
    Places,
    Recipe,
    Reference,
    Settings,
    Smoke,
    Split,
    synthetic,
)
from quietgrad.transforms import Chain, Crop, Flip

_MIDDLE, _SPREAD = 0.5, 0.25  # about what photographs have; constants, so nothing is read from data
_OUTER = "radius 5 and learning rate 0.1, as here for abadi"


def image_split(
    name: str, *, middle: float = _MIDDLE, spread: float = _SPREAD, **options: Any
) -> LoadData:
    """Loads a data set of images with `options`, scaled by a usual mean and deviation."""

    def load_data(places: Places) -> Split:
        images = load(name, places.data, **options)
        scale = partial(_scaled, middle=middle, spread=spread)
        return Split.of_columns(
            (scale(images.train_images), images.train_labels),
            (scale(images.test_images), images.test_labels),
        )

    return load_data


def _scaled(images: Tensor, middle: float = _MIDDLE, spread: float = _SPREAD) -> Tensor:
    """Bytes to about mean zero and variance one, by public constants."""
    return images.float().div_(255.0).sub_(middle).div_(spread)


def synthetic_images(*shape: int, classes: int = 10, samples: int = 64) -> LoadData:
    """Draws random images with random labels, for smoke runs."""
    return synthetic(
        lambda generator: (
            torch.randn(samples, *shape, generator=generator, device="cpu"),
            torch.randint(classes, (samples,), generator=generator, device="cpu"),
        )
    )


def _smoke_photos(classes: int = 10, build_model: BuildModel | None = None) -> Smoke:
    """Few images of 32x32 in small batches: these networks are slow."""
    photos = synthetic_images(3, 32, 32, classes=classes, samples=8)
    return Smoke(photos, build_model, changes={"batch_size": 4})


def compared(
    epsilon: float,
    values: tuple[float, float, float, float],
    *,
    psac_note: str,
    note: str = "",
    tolerances: tuple[float, float, float] = (0.01, 0.01, 0.01),
) -> tuple[Reference, ...]:
    """Figures of both papers for abadi, auto-s and psac, and those without privacy."""
    automatic, psac = f"{AUTOMATIC_CLIPPING}, Table 1", f"{PSAC}, Table 2"
    about_psac = f"{note}; {psac_note}" if note else psac_note
    return (
        Reference(automatic, "abadi", epsilon, values[0], tolerances[0], note),
        Reference(automatic, "auto-s", epsilon, values[1], tolerances[1], note),
        Reference(psac, "psac", epsilon, values[2], tolerances[2], about_psac),
        Reference(automatic, "none", None, values[3], note=note),
    )


def digits() -> Recipe:
    """One convolution and one linear layer at epsilon 3."""
    return Recipe(
        name="digits",
        summary="handwritten digits, 8x8, one convolution: nothing to fetch",
        data="nothing: in scikit-learn",
        load_data=_load_digits,
        build_model=_build_digits_model,
        settings=Settings(
            epochs=30,
            batch_size=256,
            learning_rate=0.16,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-4,  # below 1 / 1437
        ),
        smoke=Smoke(synthetic_images(1, 8, 8)),
        transform=Crop(1),
        takes=(),
    )


def _load_digits(places: Places) -> Split:
    """Images scaled to [0, 1], with labels, split the same way every time."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("scikit-learn", "recipes") from error
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32, device="cpu").unsqueeze(1)
    images = images / 16.0  # the largest value
    labels = torch.tensor(raw.target, dtype=torch.long, device="cpu")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0), device="cpu")
    train, test = order[:1437], order[1437:]
    return Split.of_columns((images[train], labels[train]), (images[test], labels[test]))


class _Centre(nn.Module):
    """Pixels from [0, 1] to [-0.5, 0.5], by a public constant: no statistic of the data is used."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - 0.5


def _build_digits_model(places: Places) -> nn.Module:
    """6,000 parameters: wider or deeper models gain less than the added noise costs."""
    return nn.Sequential(
        _Centre(),
        nn.Conv2d(1, 32, kernel_size=5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def mnist() -> Recipe:
    """40 epochs in batches of 512 at epsilon 3."""
    return Recipe(
        name="mnist",
        summary="handwritten digits, 28x28, tanh CNN",
        data="fetch `mnist`",
        load_data=image_split("mnist", middle=0.1, spread=0.3),  # handwriting is mostly paper
        build_model=_build_tanh_cnn,
        settings=Settings(
            epochs=40,
            batch_size=512,
            learning_rate=0.05,  # the papers' 0.5 for gradients of norm 0.1
            ordinary_learning_rate=0.05,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-5,
        ),
        tuned={"abadi": {"learning_rate": 0.5, "radius": 0.1}},
        smoke=Smoke(synthetic_images(1, 28, 28)),
        references=compared(
            3.0,
            (0.9804, 0.9815, 0.9824, 0.9911),
            psac_note="abadi 98.12 and auto-s 98.17 in the same table",
            tolerances=(0.006, 0.0005, 0.0005),
        ),
        transform=Crop(2),
    )


def fashion_mnist() -> Recipe:
    """40 epochs in batches of 2,048 at epsilon 3."""
    return Recipe(
        name="fashion-mnist",
        summary="pieces of clothing, 28x28, tanh CNN",
        data="fetch `fashion-mnist`",
        load_data=image_split("fashion-mnist"),
        build_model=_build_tanh_cnn,
        settings=Settings(
            epochs=40,
            batch_size=2048,
            learning_rate=0.4,  # the papers' 4 for gradients of norm 0.1
            ordinary_learning_rate=0.1,
            momentum=0.9,
            epsilon=3.0,
            delta=1e-5,
            physical_batch_size=512,
        ),
        tuned={"abadi": {"learning_rate": 4.0, "radius": 0.1}},
        smoke=Smoke(synthetic_images(1, 28, 28)),
        references=compared(
            3.0,
            (0.8604, 0.8636, 0.8656, 0.8957),
            psac_note="abadi 86.22 and auto-s 86.30 in the same table",
            tolerances=(0.006, 0.0, 0.0006),
        ),
        transform=Chain(Flip(), Crop(2)),
    )


def _build_tanh_cnn(places: Places) -> nn.Module:
    """26,010 parameters. Pooling is several times as fast with channels last."""
    model: nn.Module = tanh_cnn_28()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def cifar10_resnet20() -> Recipe:
    """The enhanced network: weights standardized, normalization behind every activation."""
    note = f"{INNER_OUTER}; {_OUTER}"
    reference = Reference(f"{CLIPPING_BIAS}, Table 1", "abadi", 8.0, 0.745, note=note)
    return _cifar10_resnet20("cifar10-resnet20", enhanced=True, reference=reference)


def cifar10_resnet20_plain() -> Recipe:
    """The usual network, with GroupNorm in place of BatchNorm."""
    reference = Reference(f"{CLIPPING_BIAS}, Table 2", "abadi", 8.0, 0.612, note=_OUTER)
    return _cifar10_resnet20("cifar10-resnet20-plain", enhanced=False, reference=reference)


def _cifar10_resnet20(name: str, *, enhanced: bool, reference: Reference) -> Recipe:
    kind = "enhanced" if enhanced else "plain"
    return Recipe(
        name=name,
        summary=f"colour images, 32x32, {kind} ResNet20",
        data="fetch `cifar10`",
        load_data=image_split("cifar10"),
        build_model=lambda places: resnet20(enhanced=enhanced),
        settings=_resnet20_settings(),
        tuned={"abadi": {"learning_rate": 0.1, "radius": 5.0}},  # the paper's
        smoke=_smoke_photos(),
        references=(reference,),
        transform=Chain(Flip(), Crop(4)),
    )


def svhn() -> Recipe:
    """House numbers, the enhanced ResNet20."""
    note = f"{INNER_OUTER}; radius 5, learning rate 0.1"
    return Recipe(
        name="svhn",
        summary="house numbers from a folder, enhanced ResNet20",
        data="folder",
        load_data=image_split("svhn"),
        build_model=lambda places: resnet20(enhanced=True),
        settings=_resnet20_settings(),
        smoke=_smoke_photos(),
        references=(Reference(f"{CLIPPING_BIAS}, Table 1", "abadi", 8.0, 0.886, note=note),),
        transform=Crop(4),
    )


def _resnet20_settings() -> Settings:
    return Settings(
        epochs=60,
        batch_size=2000,
        learning_rate=0.5,
        momentum=0.9,
        epsilon=8.0,
        delta=1e-5,
        physical_batch_size=64,
    )


def imagenette() -> Recipe:
    """Ten classes of ImageNet, ResNet9 with Mish."""
    return Recipe(
        name="imagenette",
        summary="ten classes of ImageNet from a folder, ResNet9",
        data="folder",
        load_data=image_split("imagenette", size=128),
        build_model=lambda places: resnet9(),
        settings=Settings(
            epochs=50,
            batch_size=1000,
            learning_rate=5e-4,
            optimizer="nadam",
            epsilon=8.0,
            delta=1e-4,
            physical_batch_size=16,
        ),
        tuned={"abadi": {"radius": 1.5}},
        smoke=_smoke_photos(),
        references=compared(
            8.0,
            (0.6029, 0.6071, 0.6400, 0.7111),
            psac_note="abadi 63.66 and auto-s 63.44 in the same table: other baselines than the"
            f" 60.29 and 60.71 of {AUTOMATIC_CLIPPING}",
        ),
        transform=Chain(Flip(), Crop(8)),
    )


def celeba() -> Recipe:
    """Does a face smile? ResNet9."""
    return Recipe(
        name="celeba",
        summary="faces that smile, from a folder, ResNet9",
        data="folder",
        load_data=image_split("celeba", size=64),
        build_model=lambda places: resnet9(classes=2),
        settings=Settings(
            epochs=10,
            batch_size=500,
            learning_rate=1e-3,
            optimizer="adam",
            epsilon=8.0,
            delta=5e-6,
            physical_batch_size=32,
        ),
        tuned={"abadi": {"radius": 0.1}},
        smoke=_smoke_photos(classes=2),
        references=compared(
            8.0,
            (0.9075, 0.9108, 0.9141, 0.9261),
            psac_note="abadi 91.17 and auto-s 91.10 in the same table",
        ),
        transform=Flip(),
    )


def vit() -> Recipe:
    """CIFAR-10 with a pretrained ViT: the setting of "Group-wise Clipping", Table 6."""
    return Recipe(
        name="vit",
        summary="CIFAR-10 with a ViT from a local folder",
        data="fetch `cifar10`; `--model-dir`",
        load_data=_load_enlarged,
        build_model=_build_vit,
        settings=Settings(
            epochs=5,
            batch_size=1000,
            learning_rate=5e-4,
            optimizer="adamw",
            epsilon=2.0,
            delta=1e-5,
            physical_batch_size=20,
        ),
        smoke=_smoke_photos(build_model=_build_small_vit),
        transform=Flip(),
        takes=("data", "model"),
    )


class _Enlarged(Dataset[tuple[Tensor, Tensor]]):
    """Images that are enlarged to 224x224 one by one: all at once they would fill the memory."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = _scaled(self._images[index : index + 1])
        larger = F.interpolate(image, size=224, mode="bilinear", align_corners=False)
        return larger[0], self._labels[index]


def _load_enlarged(places: Places) -> Split:
    images = load("cifar10", places.data)
    return Split(
        train=_Enlarged(images.train_images, images.train_labels),
        test=_Enlarged(images.test_images, images.test_labels),
    )


def _build_vit(places: Places) -> nn.Module:
    if places.model is None:
        raise ValueError(
            "recipe 'vit' needs --model-dir: a folder with a pretrained ViT, as transformers saves"
            " it (or --smoke for a small one with random weights)"
        )
    model = transformers().AutoModelForImageClassification.from_pretrained(
        places.model, local_files_only=True, num_labels=10, ignore_mismatched_sizes=True
    )
    return Logits(model)


def _build_small_vit(places: Places) -> nn.Module:
    library = transformers()
    config = library.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=10,
    )
    return Logits(library.ViTForImageClassification(config))
