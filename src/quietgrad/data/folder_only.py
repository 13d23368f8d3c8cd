"""Data sets that no package carries: read from a folder in the data set's own format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FolderOnly:
    """A data set that no package carries.

    Attributes:
        name: of the data set.
        content: in words.
        files: that its folder holds.
    """

    name: str
    content: str
    files: str


_IN_FOLDERS = (
    FolderOnly("sst2", "GLUE: sentences of reviews, good or bad", "train.tsv, dev.tsv"),
    FolderOnly("qnli", "GLUE: does a sentence answer a question", "train.tsv, dev.tsv"),
    FolderOnly("qqp", "GLUE: do two questions ask the same", "train.tsv, dev.tsv"),
    FolderOnly(
        "mnli",
        "GLUE: does a sentence follow from another",
        "train.tsv, dev_matched.tsv, dev_mismatched.tsv",
    ),
    FolderOnly(
        "e2e",
        "restaurants and sentences about them",
        "trainset.csv (or devset.csv), testset_w_refs.csv",
    ),
    FolderOnly("svhn", "house numbers, 32x32", "train_32x32.mat, test_32x32.mat"),
    FolderOnly("cifar100", "colour images of a hundred kinds, 32x32", "train.bin, test.bin"),
    FolderOnly(
        "imagenette",
        "photographs of ten kinds",
        "train/<class>/*.JPEG, val/<class>/*.JPEG",
    ),
    FolderOnly(
        "celeba",
        "faces and one attribute",
        "img_align_celeba/*.jpg, list_attr_celeba.txt, list_eval_partition.txt",
    ),
)

FOLDERS = {entry.name: entry for entry in _IN_FOLDERS}


def no_package(entry: FolderOnly) -> str:
    """What to do about a data set that cannot be fetched."""
    return (
        f"{entry.name} is in no package: give a folder with {entry.files} (--data-dir), or put "
        f"them into $QUIETGRAD_DATA/{entry.name}"
    )
