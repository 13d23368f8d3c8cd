"""Which function reads which data set. A new one takes its place here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from quietgrad.data import (
    adult,
    celeba,
    cifar10,
    cifar100,
    e2e,
    fashion_mnist,
    glue,
    imagenette,
    imdb,
    mnist,
    svhn,
    wikitext_2,
)
from quietgrad.data.kinds import AnyData, ImageData

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images, their labels, test images, their labels."""


def _images(read: Callable[[Path], Arrays]) -> Callable[[Path], ImageData]:
    return lambda path: ImageData(*read(path))


FROM_PACKAGE: Mapping[str, Callable[[Path], AnyData]] = {
    "mnist": _images(mnist.from_package),
    "fashion-mnist": _images(fashion_mnist.from_package),
    "cifar10": _images(cifar10.from_package),
    "imdb": imdb.from_package,
    "wikitext-2": wikitext_2.from_package,
    "adult": adult.from_package,
}
FROM_FOLDER: Mapping[str, Callable[..., AnyData]] = {
    "mnist": _images(mnist.from_folder),
    "fashion-mnist": _images(mnist.from_folder),
    "cifar10": _images(cifar10.from_folder),
    "imdb": imdb.from_folder,
    "wikitext-2": wikitext_2.from_folder,
    "adult": adult.from_folder,
    "sst2": partial(glue.from_folder, task=glue.SST2),
    "qnli": partial(glue.from_folder, task=glue.QNLI),
    "qqp": partial(glue.from_folder, task=glue.QQP),
    "mnli": glue.mnli_from_folder,
    "e2e": e2e.from_folder,
    "svhn": svhn.from_folder,
    "cifar100": cifar100.from_folder,
    "imagenette": imagenette.from_folder,
    "celeba": celeba.from_folder,
}
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "mnli": ("test",),
    "e2e": ("train",),
    "imagenette": ("size",),
    "celeba": ("size", "attribute"),
}
