"""Lengths of samples, by which micro-batches are filled."""

from collections.abc import Sequence

from torch import Tensor

from quietgrad._checks import require_count


def checked_lengths(lengths: Sequence[int] | Tensor, population: int) -> list[int]:
    """One whole number for each sample.

    Raises:
        TypeError: this is no sequence.
        ValueError: there are more or fewer, or one of them is no whole number >= 0.
    """
    try:
        values = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        given = len(values)
    except TypeError as error:
        raise TypeError(
            f"lengths={lengths!r} is not valid: expected a whole number for each sample"
        ) from error
    if given != population:
        raise ValueError(
            f"lengths has {given} values, and the data set {population} samples: expected one"
            " for each"
        )
    return [require_count(f"lengths[{i}]", value, at_least=0) for i, value in enumerate(values)]
