"""Lengths of samples, by which micro-batches are filled."""

from collections.abc import Sequence

from torch import Tensor

from quietgrad._checks import require_count


def checked_lengths(lengths: Sequence[int] | Tensor, population: int) -> list[int]:
    """One whole number for each sample.

    Raises:
        ValueError: there are more or fewer, or one of them is no whole number >= 0.
    """
    values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
    if len(values) != population:
        raise ValueError(
            f"lengths has {len(values)} values, and the data set {population} samples: expected one"
            " for each"
        )
    return [require_count(f"lengths[{i}]", value, at_least=0) for i, value in enumerate(values)]
