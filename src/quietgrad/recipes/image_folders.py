"""Data sets of images that come in folders of one's own: ImageNette, CelebA, SVHN; and a ViT."""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from quietgrad import data
from quietgrad.nn.models import resnet9, resnet20
from quietgrad.recipes.encoders import Logits, transformers
from quietgrad.recipes.images import image_split, made_images, scaled
from quietgrad.recipes.recipe import Places, Recipe, Reference, Smoke, Split
from quietgrad.recipes.settings import Settings
from quietgrad.transforms import Chain, Crop, Flip

_AUTOMATIC = '"Automatic Clipping", Table 1'
_PSAC = '"Per-Sample Adaptive Clipping", Table 2'
_BIAS = '"A Theory to Instruct Differentially-Private Learning via Clipping Bias Reduction"'
_IMAGENETTE = (
    "abadi 63.66 and auto-s 63.44 in the same table: other baselines than the 60.29 and 60.71 of"
    ' "Automatic Clipping"'
)
_CELEBA = "abadi 91.17 and auto-s 91.10 in the same table"
_INNER_OUTER = (
    "inner-outer momentum, K0 = 2 and gamma0 = 0.08 (--inner-steps 2); radius 5, learning rate 0.1"
)
_VIT_SIDE = 224
_FEW = {"batch_size": 4}


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
        smoke=Smoke(made_images(3, 32, 32, samples=8), changes=_FEW),
        references=(
            Reference(_AUTOMATIC, "abadi", 8.0, 0.6029),
            Reference(_AUTOMATIC, "auto-s", 8.0, 0.6071),
            Reference(_PSAC, "psac", 8.0, 0.6400, note=_IMAGENETTE),
            Reference(_AUTOMATIC, "none", None, 0.7111),
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
        smoke=Smoke(made_images(3, 32, 32, classes=2, samples=8), changes=_FEW),
        references=(
            Reference(_AUTOMATIC, "abadi", 8.0, 0.9075),
            Reference(_AUTOMATIC, "auto-s", 8.0, 0.9108),
            Reference(_PSAC, "psac", 8.0, 0.9141, note=_CELEBA),
            Reference(_AUTOMATIC, "none", None, 0.9261),
        ),
        transform=Flip(),
    )


def svhn() -> Recipe:
    """House numbers, the enhanced ResNet20."""
    return Recipe(
        name="svhn",
        summary="house numbers from a folder, enhanced ResNet20",
        data="folder",
        load_data=image_split("svhn"),
        build_model=lambda places: resnet20(enhanced=True),
        settings=Settings(
            epochs=60,
            batch_size=2000,
            learning_rate=0.5,
            momentum=0.9,
            epsilon=8.0,
            delta=1e-5,
            physical_batch_size=64,
        ),
        smoke=Smoke(made_images(3, 32, 32, samples=8), changes=_FEW),
        references=(Reference(f"{_BIAS}, Table 1", "abadi", 8.0, 0.886, note=_INNER_OUTER),),
        transform=Crop(4),
    )


def vit() -> Recipe:
    """CIFAR-10 with a pretrained ViT: the setting of "Group-wise Clipping", Table 6."""
    return Recipe(
        name="vit",
        summary="CIFAR-10 with a ViT from a local folder",
        data="fetch `cifar10`; `--model-dir`",
        load_data=_load_large,
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
        smoke=Smoke(made_images(3, 32, 32, samples=8), _build_small_vit, changes=_FEW),
        transform=Flip(),
        takes=("data", "model"),
    )


class _Enlarged(Dataset[tuple[Tensor, Tensor]]):
    """Images that are made larger one by one: all at once they would fill the memory."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images, self._labels = images, labels

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = scaled(self._images[index : index + 1])
        larger = F.interpolate(image, size=_VIT_SIDE, mode="bilinear", align_corners=False)
        return larger[0], self._labels[index]


def _load_large(places: Places) -> Split:
    images = data.load("cifar10", places.data)
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
    library = transformers()
    return Logits(
        library.AutoModelForImageClassification.from_pretrained(
            places.model, local_files_only=True, num_labels=10, ignore_mismatched_sizes=True
        )
    )


def _build_small_vit(places: Places) -> nn.Module:
    library = transformers()
    config = library.ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=10,
    )
    return Logits(library.ViTForImageClassification(config))
