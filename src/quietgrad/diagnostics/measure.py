"""Measurements of a batch, from inner products gathered parameter by parameter in a backward pass.

Norms, cosines, sampling noise and averages of samples all follow from the ``[B, B]`` inner
products, so that the gradients of a big model never have to be held all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from quietgrad import clipping as clippings
from quietgrad import grouping as groupings
from quietgrad._checks import require_count
from quietgrad.capture.model_state import preserve_state
from quietgrad.clipping import Clipping
from quietgrad.diagnostics.records import Averaged, Measurement, Spread
from quietgrad.errors import EngineStateError, LossError
from quietgrad.factors.base import Factor
from quietgrad.functional import captured_backward
from quietgrad.grouping.base import Group, Grouping

_COLUMNS_AT_ONCE = 1 << 21  # entries that are converted to double precision at a time


class TooFewSamplesError(ValueError):
    """Fewer than two samples: nothing can be said about how gradients differ."""

    def __init__(self, count: int, what: str) -> None:
        super().__init__(
            f"{count} {what}: expected at least 2, for one sample says nothing about how gradients "
            "differ (no sampling noise can be estimated). Measure a larger batch"
        )


DEFAULT_AVERAGES = (1, 4, 16)
DEFAULT_MEMORY_BUDGET = 1 << 30  # bytes of materialized gradients held at a time


def measure(
    model: nn.Module,
    closure: Callable[[], Tensor],
    *,
    clipping: str | Clipping = "auto-s",
    grouping: str | Grouping = "all-layer",
    radius: float | None = None,
    averages: Sequence[int] = DEFAULT_AVERAGES,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    verify: bool = True,
) -> Measurement:
    """Measure the raw per-sample gradients of one batch. NOT PRIVATE.

    The work is that of a backward pass with all per-sample gradients, a parameter at a time, and
    of their inner products: it grows with the square of the batch.

    Args:
        model: any module that no engine is attached to (measure a `copy.deepcopy` of one that is);
            it is left as it was, its gradients and all generators too.
        closure: runs the model and returns one loss per sample, a 1-D tensor. It is called twice.
        clipping: a clipping function, by name or as an object with options.
        grouping: a grouping of the trainable parameters, by name or as an object.
        radius: total clipping radius R, if `grouping` is a name (default 1).
        averages: numbers of samples to average, none larger than the batch.
        memory_budget: bytes of materialized gradients that may be held.
        verify: verify that samples are independent, as `quietgrad.clipped_sum` does.

    Raises:
        EngineStateError: an engine is attached to the model.
        LossError: there is no sample, or not one loss per sample.
        TooFewSamplesError: there is one sample (or one whose gradient is finite).
        ValueError: one of `averages` is larger than the batch.
    """
    sizes = require_sizes(averages)
    gathered = gather(
        model,
        closure,
        clipping=clipping,
        grouping=grouping,
        radius=radius,
        memory_budget=memory_budget,
        verify=verify,
    )
    measurement = summary(gathered, sizes)
    if sizes and max(sizes) > measurement.samples:
        raise ValueError(
            f"averages={sizes!r} is not valid: {measurement.samples} samples cannot be averaged"
            f" {max(sizes)} at a time. Leave that out, or measure a larger batch"
        )
    return measurement


def gather(
    model: nn.Module,
    closure: Callable[[], Tensor],
    *,
    clipping: str | Clipping,
    grouping: str | Grouping,
    radius: float | None,
    memory_budget: int,
    verify: bool,
) -> Gatherer:
    """All inner products of a batch; arguments as for `measure`."""
    function = clippings.resolve(clipping)
    groups = groupings.resolve(grouping, model, radius)
    budget = require_count("memory_budget", memory_budget, at_least=1)

    def gatherer(batch: int) -> Gatherer:
        if not batch:
            raise LossError("the closure returned no losses: a batch of no samples has no geometry")
        return Gatherer(groups, function, batch, budget)

    with preserve_gradients(model):
        gathered = captured_backward(model, closure, gatherer, verify=verify)
    gathered.finish()
    return gathered


@contextmanager
def preserve_gradients(model: nn.Module) -> Iterator[None]:
    """Backward passes in here leave buffers, generators and gradients as they were."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        with preserve_state(model), torch.enable_grad():
            for parameter, _ in gradients:
                parameter.grad = None
            yield
    except EngineStateError as error:
        raise EngineStateError(
            "the model is attached to an engine, which lets no other backward pass through it:"
            " measure a copy, copy.deepcopy(model), with a closure that runs the copy"
        ) from error
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def require_sizes(averages: object) -> tuple[int, ...]:
    """Numbers of samples to average."""
    if not isinstance(averages, Sequence):
        raise ValueError(f"averages={averages!r} is not valid: expected integers, such as (1, 4)")
    return tuple(require_count("averages", size, at_least=1) for size in averages)


class Gatherer:
    """A sink that turns factors into inner products, and clips as a reducer would.

    A group's products are reduced to what its weights make of them as soon as it is complete.

    Args:
        groups: the parameters that are clipped together.
        clipping: how.
        batch: the number of samples.
        memory_budget: bytes of materialized gradients that may be held.
        loss_scale: by which the gradients come multiplied; it is divided out.

    Attributes:
        products: inner products of whole gradients, ``[B, B]``; not finite where a gradient is not.
        towards_clipped: inner products of the clipped sum with every gradient, ``[B]``.
        clipped_square: squared length of the clipped sum.
        clipped_square_of_parts: what it were if nothing in a group cancelled.
        shortened: group name -> share of samples whose gradient the clipping makes shorter.

    Raises:
        TooFewSamplesError: there are fewer than two samples.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        clipping: Clipping,
        batch: int,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        loss_scale: float = 1.0,
    ) -> None:
        if batch < 2:
            raise TooFewSamplesError(batch, "sample in the batch")
        self._groups, self._clipping = groups, clipping
        self._budget, self._loss_scale = memory_budget, loss_scale
        self._group_of = {name: i for i, g in enumerate(groups) for name in g.parameters}
        self._missing = [set(group.parameters) for group in groups]
        self._gathered: dict[int, Tensor] = {}
        self.products = torch.zeros(batch, batch, dtype=torch.float64, device="cpu")
        self.towards_clipped = torch.zeros(batch, dtype=torch.float64, device="cpu")
        self.clipped_square = torch.zeros((), dtype=torch.float64, device="cpu")
        self.clipped_square_of_parts = torch.zeros((), dtype=torch.float64, device="cpu")
        self.shortened = {group.name: 0.0 for group in groups}

    @property
    def radii(self) -> dict[str, float]:
        """Group name -> the radius that it is clipped by."""
        return {group.name: group.radius for group in self._groups}

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Add a parameter's inner products to its group's; clip the group if it was the last."""
        index = self._group_of[name]
        if index not in self._gathered:
            self._gathered[index] = torch.zeros_like(self.products, device=factor.device)
        add_products(factor, self._gathered[index], self._budget)
        self._missing[index].discard(name)
        if not self._missing[index]:
            self._reduce(index)

    def finish(self) -> None:
        """Clip the groups in which some parameter was not used at all."""
        for index in sorted(self._gathered):
            self._reduce(index)

    def _reduce(self, index: int) -> None:
        group = self._groups[index]
        products = self._gathered.pop(index).cpu() / self._loss_scale**2
        self.products += products
        norms = products.diagonal().sqrt()
        finite = norms.isfinite()
        norms = norms.where(finite, 0.0)
        weights = self._clipping.weights(norms, group.radius)
        weights = weights.where(finite & (norms > 0), 0.0)
        # A gradient that is not finite is dropped, and must not meet even a zero weight.
        known = products.where(finite & finite[:, None], 0.0)
        self.towards_clipped += known @ weights
        self.clipped_square += weights @ known @ weights
        self.clipped_square_of_parts += (weights @ norms).square()
        shorter = (weights * norms < norms)[finite]
        self.shortened[group.name] = shorter.double().mean().item() if len(shorter) else 0.0


def add_products(factor: Factor, products: Tensor, memory_budget: int) -> None:
    """Add the inner products of a factor's gradients to ``products[B, B]``, a block at a time."""
    # All samples at once if they fit, or as many as fit twice: two blocks are multiplied.
    fitting = memory_budget // max(1, factor.shape.numel() * factor.dtype.itemsize)
    at_once = factor.batch if fitting >= factor.batch else max(1, fitting // 2)
    starts = range(0, factor.batch, at_once)
    for start in starts:
        rows = slice(start, start + starts.step)
        block = _materialize(factor, rows)
        _add_block(block, block, products[rows, rows])
        for later in starts[starts.index(start) + 1 :]:
            columns = slice(later, later + starts.step)
            _add_block(block, _materialize(factor, columns), products[rows, columns])
            products[columns, rows] = products[rows, columns].mT


def _materialize(factor: Factor, samples: slice) -> Tensor:
    grads = factor.select(samples).materialize().detach()
    return grads.reshape(len(grads), factor.shape.numel())


def _add_block(left: Tensor, right: Tensor, block: Tensor) -> None:
    """In double precision: lengths of differences are differences of these products."""
    step = max(1, _COLUMNS_AT_ONCE // max(len(left), len(right)))
    for start in range(0, left.shape[1], step):
        columns = slice(start, start + step)
        block += left[:, columns].double() @ right[:, columns].double().mT


# Of the square of a sum that cancels, relative to that of its parts: below this it is rounding.
_NEGLIGIBLE = 1e-13


@dataclass(frozen=True)
class InnerProducts:
    """The Gram matrix of n vectors; a combination of them is given by its n coefficients.

    Attributes:
        matrix: ``[n, n]``, in double precision, finite.
    """

    matrix: Tensor

    @property
    def lengths(self) -> Tensor:
        """Of the vectors themselves."""
        return self.matrix.diagonal().sqrt()

    @property
    def to_mean(self) -> Tensor:
        """The coefficients of their mean."""
        count = len(self.matrix)
        return self.matrix.new_full((count,), 1 / count)

    def squares(self, combinations: Tensor) -> Tensor:
        """Squared lengths of ``combinations[..., n]``; 0 where nothing but rounding is left."""
        squares = (combinations @ self.matrix * combinations).sum(-1)
        return without_rounding(squares, (combinations.abs() @ self.lengths).square())

    def cosines(self, combinations: Tensor, to: Tensor) -> Tensor:
        """Of the angles between ``combinations[..., n]`` and one other; NaN if there is none."""
        products = combinations @ (self.matrix @ to)
        return cosine(products, self.squares(combinations), self.squares(to))


def without_rounding(squares: Tensor, squares_of_parts: Tensor) -> Tensor:
    """Squares of sums, and 0 for those that are not told apart from rounding errors."""
    return squares.where(squares > _NEGLIGIBLE * squares_of_parts, 0.0)


def cosine(product: Tensor, square: Tensor, other_square: Tensor) -> Tensor:
    """Of an angle, from an inner product and two squared lengths; NaN if one of them is 0."""
    # One root each: the product of two squares may underflow.
    lengths = square.sqrt() * other_square.sqrt()
    return torch.where(lengths > 0, product / lengths, torch.nan).clamp(-1, 1)


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def summary(gathered: Gatherer, averages: Iterable[int]) -> Measurement:
    """What a batch's inner products say; sizes of averages that exceed the batch are left out.

    TooFewSamplesError if fewer than two gradients are finite.
    """
    finite = gathered.products.diagonal().isfinite()
    count = int(finite.sum())
    if count < 2:
        raise TooFewSamplesError(count, f"of {len(finite)} samples with a finite gradient")
    known = InnerProducts(gathered.products[finite][:, finite])
    mean_square = known.squares(known.to_mean)
    clipped_square = without_rounding(gathered.clipped_square, gathered.clipped_square_of_parts)
    towards_mean = gathered.towards_clipped[finite].mean()
    samples = torch.eye(count, dtype=torch.float64, device="cpu")
    noise = _noise_of(known, samples, size=1)
    cosines = known.cosines(samples, known.to_mean)
    cosines = cosines[~cosines.isnan()]
    return Measurement(
        samples=count,
        nonfinite=len(finite) - count,
        norms=_spread(known.lengths),
        mean_gradient_norm=mean_square.sqrt().item(),
        mean_clipped_norm=clipped_square.sqrt().item() / count,
        sampling_noise=noise,
        relative_noise=_number((noise / mean_square).sqrt()) if mean_square else None,
        clipped=dict(gathered.shortened),
        cosines=_spread(cosines) if len(cosines) else None,
        clipped_cosine=_number(cosine(towards_mean, clipped_square, mean_square)),
        averages=tuple(_average(known, size) for size in averages if size <= count),
    )


def division(count: int, size: int) -> Tensor:
    """Places of samples that are averaged together, ``[count // size, size]``: random, but fixed.

    Samples that come one after another may be of one kind, so that runs of them would not do.
    """
    places = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    return places[: count // size * size].view(-1, size)


def _average(known: InnerProducts, size: int) -> Averaged:
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


def _spread(values: Tensor) -> Spread:
    quantiles = torch.quantile(values, values.new_tensor(_QUANTILES))
    return Spread(values.mean().item(), *quantiles.tolist())


def _number(value: Tensor) -> float | None:
    """None instead of NaN, which JSON has no word for."""
    return None if value.isnan() else value.item()
