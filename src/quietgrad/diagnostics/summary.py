"""From inner products to what is reported."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from quietgrad.diagnostics.gathering import Gatherer, TooFewSamplesError
from quietgrad.diagnostics.measurement import Averaged, Measurement, Spread
from quietgrad.diagnostics.products import InnerProducts, cosine, without_rounding

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def summary(gathered: Gatherer, averages: Iterable[int]) -> Measurement:
    """What a batch's inner products say.

    Args:
        gathered: of a whole backward pass.
        averages: numbers of samples to average; those that exceed the batch are left out.

    Raises:
        TooFewSamplesError: fewer than two gradients are finite.
    """
    finite = gathered.products.diagonal().isfinite()
    count = int(finite.sum())
    if count < 2:
        raise TooFewSamplesError(count, f"of {len(finite)} samples with a finite gradient")
    known = InnerProducts(gathered.products[finite][:, finite])
    mean_square = known.squares(known.to_mean)
    clipped_square = without_rounding(gathered.clipped_square, gathered.clipped_square_of_parts)
    towards_mean = gathered.towards_clipped[finite].mean()
    noise = _noise_of(known, torch.eye(count, dtype=torch.float64), size=1)
    return Measurement(
        samples=count,
        nonfinite=len(finite) - count,
        norms=_spread(known.lengths),
        mean_gradient_norm=mean_square.sqrt().item(),
        mean_clipped_norm=clipped_square.sqrt().item() / count,
        sampling_noise=noise,
        relative_noise=_number((noise / mean_square).sqrt()) if mean_square else None,
        clipped=dict(gathered.shortened),
        cosines=_spread_if_any(known.cosines(torch.eye(count).double(), known.to_mean)),
        clipped_cosine=_number(cosine(towards_mean, clipped_square, mean_square)),
        averages=tuple(_averaged(known, size) for size in averages if size <= count),
    )


def division(count: int, size: int) -> Tensor:
    """Places of samples that are averaged together, ``[count // size, size]``: random, but fixed.

    Samples that come one after another may be of one kind, so that runs of them would not do.
    """
    places = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return places[: count // size * size].view(-1, size)


def _averaged(known: InnerProducts, size: int) -> Averaged:
    together = division(len(known.matrix), size)
    averages = known.matrix.new_zeros(len(together), len(known.matrix))
    averages.scatter_(1, together, 1 / size)
    lengths = known.squares(averages).sqrt()
    factors = torch.where(lengths > 0, 1 / lengths, 0.0)
    cosines = known.cosines(averages, known.to_mean)
    return Averaged(
        size=size,
        count=len(together),
        sampling_noise=_noise_of(known, averages, size) if size < len(known.matrix) else None,
        cosine=_number(cosines.nanmean()),
        normalized_cosine=_number(known.cosines(factors @ averages, known.to_mean)),
    )


def _noise_of(known: InnerProducts, averages: Tensor, size: int) -> float:
    """Unbiased: the mean they are compared with is that of a batch of which they are a part."""
    from_mean = known.squares(averages - known.to_mean).mean().item()
    return from_mean / (1 - size / len(known.matrix))


def _spread_if_any(values: Tensor) -> Spread | None:
    defined = values[~values.isnan()]
    return _spread(defined) if len(defined) else None


def _spread(values: Tensor) -> Spread:
    quantiles = torch.quantile(values, values.new_tensor(_QUANTILES))
    return Spread(values.mean().item(), *quantiles.tolist())


def _number(value: Tensor) -> float | None:
    """None instead of NaN, which JSON has no word for."""
    return None if value.isnan() else value.item()
