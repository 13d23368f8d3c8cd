"""What a data set is once it is loaded: images, texts, a table, pairs, or running text.

What is called ``train`` is to learn from, and private; what is called ``test`` is to measure with.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ImageData:
    """Images ``[N, C, H, W]`` of bytes, and the number of each one's class.

    Attributes:
        train_images: to learn from; private.
        train_labels: theirs.
        test_images: to measure with.
        test_labels: theirs.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True)
class TextData:
    """Texts, and the number of each one's class.

    Attributes:
        train_texts: to learn from; private.
        train_labels: theirs, ``[N]``.
        test_texts: to measure with.
        test_labels: theirs.
        classes: what the numbers mean.
        train_pairs: the second text of each, if the task is about two; otherwise None.
        test_pairs: likewise.
    """

    train_texts: list[str]
    train_labels: Tensor
    test_texts: list[str]
    test_labels: Tensor
    classes: tuple[str, ...]
    train_pairs: list[str] | None = None
    test_pairs: list[str] | None = None


@dataclass(frozen=True)
class TableData:
    """Rows of numbers and of categories, and the number of each one's class.

    Numbers are scaled to ``[0, 1]`` and categories are counted by what the data set's description
    says of them, never by what is in the rows: statistics of private rows are not public.

    Attributes:
        train_numbers: ``[N, numbers]``; private.
        train_categories: ``[N, categories]``, each from 0 to its size less 1; private.
        train_labels: ``[N]``; private.
        test_numbers: to measure with.
        test_categories: likewise.
        test_labels: likewise.
        number_names: of the columns of numbers.
        category_names: of the columns of categories.
        category_sizes: how many categories each of those has.
    """

    train_numbers: Tensor
    train_categories: Tensor
    train_labels: Tensor
    test_numbers: Tensor
    test_categories: Tensor
    test_labels: Tensor
    number_names: tuple[str, ...]
    category_names: tuple[str, ...]
    category_sizes: tuple[int, ...]


@dataclass(frozen=True)
class PairData:
    """Meanings and the texts that say them.

    Attributes:
        train_meanings: to learn from, one for each reference; private.
        train_references: a text for each of them; private.
        test_meanings: to measure with, each one once.
        test_references: all texts for each of them.
    """

    train_meanings: list[str]
    train_references: list[str]
    test_meanings: list[str]
    test_references: list[list[str]]


@dataclass(frozen=True)
class RawText:
    """Running text.

    Attributes:
        train: to learn from; private.
        valid: to choose by.
        test: to measure with.
    """

    train: str
    valid: str
    test: str


AnyData = ImageData | TextData | TableData | PairData | RawText
