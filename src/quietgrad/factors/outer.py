"""Gradients of matrices used in a product: a sum of outer products over positions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby

import torch
from torch import Tensor

from quietgrad.factors.base import (
    STACKED_FACTOR_FLOATS,
    STACKED_FLOATS,
    Cost,
    Dense,
    RawNorms,
    StackedNorms,
    TensorFactor,
    cover_rounding,
    form,
    is_true,
    of_samples,
    peaks_of,
    power_of_two,
    scale_samples,
    stack_tensors,
    summed,
    to_float32,
    vector_norm,
)

# A Gram-matrix norm loses accuracy where the positions of a sample cancel each other out. The
# relative error grows as eps * (sum_t |row_t||col_t|)^2 / norm^2; beyond these errors the sample
# is evaluated again from its materialized gradient.
_TOLERATED_ERROR = {torch.float32: 1e-4, torch.float64: 1e-10}


# Positions are split in at most so many blocks of at least this size, to use the symmetry of a Gram
# matrix: with more the products are too small to be fast. Other devices are better at few large
# products, and are asked for as few as possible.
MOST_BLOCKS, _LEAST_BLOCK = {"cpu": 4}, 64


class Outer(TensorFactor):
    """``gradient_i = sum_t rows[i, t] (x) cols[i, t]`` with ``rows[B, T, P]``, ``cols[B, T, D]``.

    ``groups > 1`` holds block gradients: rows and columns are split in equal groups that only meet
    their own kind, as in a grouped convolution; the gradient is then ``[P, D / groups]``.
    ``shape`` is the parameter's, where it has more dimensions than the matrix.
    """

    def __init__(
        self, rows: Tensor, cols: Tensor, groups: int = 1, shape: torch.Size | None = None
    ) -> None:
        self.rows, self.cols, self.groups = rows, cols, groups
        self.batch, self.positions, height = rows.shape
        self.shape = shape or torch.Size((height, cols.shape[2] // groups))
        self._magnitude: Tensor | None = None
        super().__init__(self.rows, self.cols)
        floats = max(rows.numel() + cols.numel(), self.batch * self.positions**2)
        self.is_small = floats <= STACKED_FACTOR_FLOATS and groups == 1 and not self.is_half

    def sq_norm(self) -> Tensor:
        if self.positions == 0 or not self.shape.numel():
            return self.rows.new_zeros(self.batch, dtype=self.dtype)
        if self.groups > 1:
            return self._ungrouped().sq_norm().view(self.batch, self.groups).sum(1)
        if self.positions == 1:
            return self._lengths_of_positions().squeeze(1).square()
        raw = self._gram_norms()
        found = raw.stacked([raw])
        assert isinstance(found, GramNorms)
        if not is_true(found.are_fine.all()):
            found.repair()
        self._magnitude = found.magnitudes.squeeze(0)
        return found.squares.squeeze(0)

    def raw_norms(self) -> RawNorms | None:
        if self.positions == 0 or not self.shape.numel() or self.groups > 1:
            return None
        if self.positions > 1:
            if self.is_small:
                return RawNorms(self, (self.rows, self.cols), SmallGramNorms, are_parts=True)
            return self._gram_norms()
        if not self.is_half:
            return RawNorms(self, self._lengths_of_sides(), LengthNorms)
        return RawNorms(
            self, _join([p._lengths_of_sides() for _, p in self.widened()]), LengthNorms
        )

    def _lengths_of_sides(self) -> tuple[Tensor, ...]:
        return vector_norm(self.rows, dim=2), vector_norm(self.cols, dim=2)

    def joined_norms(self, count: int) -> RawNorms | None:
        sides, each = (self.rows, self.cols), self.batch // count
        floats = max(sum(side.numel() for side in sides) // count, each * self.positions**2)
        is_small = floats <= STACKED_FACTOR_FLOATS and self.groups == 1 and not self.is_half
        if not is_small or self.positions < 2 or not self.shape.numel():
            return None
        rows, cols = (side.unflatten(0, (count, each)) for side in sides)
        return RawNorms(self, (rows, cols), SmallGramNorms, are_parts=True, joined=count)

    def _gram_norms(self) -> RawNorms:
        if self.batch * self.positions**2 <= STACKED_FLOATS:
            grams = _join([part._grams() for _, part in self.widened()])
            return RawNorms(self, grams, SmallGramNorms)
        return RawNorms(self, _join([part._squares() for _, part in self.widened()]), GramNorms)

    def _grams(self) -> tuple[Tensor, ...]:
        return self.rows @ self.rows.mT, self.cols @ self.cols.mT

    def _squares(self) -> tuple[Tensor, ...]:
        """Of each block of positions with itself, and twice with earlier ones (symmetric Grams)."""
        most = MOST_BLOCKS.get(self.rows.device.type, 1)
        count = min(most, self.positions // _LEAST_BLOCK)
        size = -(-self.positions // max(1, count))
        squares, sizes = [], []
        for start in range(0, self.positions, size):
            sides = [side[:, start : start + size] for side in (self.rows, self.cols)]
            row_gram, col_gram = (side @ side.mT for side in sides)
            # Copies: the matrices themselves are not to be held.
            sizes.append([g.diagonal(dim1=1, dim2=2).clone() for g in (row_gram, col_gram)])
            # Not a product of matrices: sums are rounded less.
            squares.append(row_gram.mul_(col_gram).sum((1, 2)))
            if start:
                before = self.rows[:, :start], self.cols[:, :start]
                rest, other = (s @ b.mT for s, b in zip(sides, before, strict=True))
                squares.append(rest.mul_(other).sum((1, 2)).mul_(2))
        if len(squares) == 1:
            return squares[0], *sizes[0]
        joined = (torch.cat(each, 1) for each in zip(*sizes, strict=True))
        return torch.stack(squares).sum(0), *joined

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.is_half:
            total = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            return self.add_weighted_sum(weights, total)
        if self.groups > 1:
            blocks, shape = self._ungrouped(weights), (self.batch, self.groups, self.positions, -1)
            total = torch.einsum("bgtp,bgtd->gpd", blocks.rows.view(shape), blocks.cols.view(shape))
            return total.reshape(self.shape)
        rows, cols = self._weigh_smaller(weights)
        return (rows.flatten(0, 1).mT @ cols.flatten(0, 1)).view(self.shape)

    @summed
    def add_weighted_sum(self, weights: Tensor, total: Tensor) -> Tensor:
        if self.groups > 1 or not total.is_contiguous() or total.dtype != self.rows.dtype:
            return super().add_weighted_sum(weights, total)
        rows, cols = self._weigh_smaller(weights)
        matrix = total.view(rows.shape[2], cols.shape[2])
        matrix.addmm_(rows.flatten(0, 1).mT, cols.flatten(0, 1))
        return total

    @of_samples
    def materialize(self) -> Tensor:
        if self.groups > 1:
            return self._ungrouped().materialize().view(self.batch, *self.shape)
        return (self.rows.mT @ self.cols).view(self.batch, *self.shape)

    def signature(self) -> Hashable:
        return Outer, form(self.rows), form(self.cols), self.groups, self.shape

    def _with(self, change: Callable[[Tensor], Tensor]) -> Outer:
        return Outer(change(self.rows), change(self.cols), self.groups, self.shape)

    def scaled(self, scales: Tensor) -> Outer:
        return Outer(self.rows, scale_samples(self.cols, scales), self.groups, self.shape)

    def rescaled(self) -> tuple[Outer, Tensor]:
        sides = to_float32(self.rows), to_float32(self.cols)
        rows, cols = (side.unflatten(2, (self.groups, -1)) for side in sides)
        rows, cols, scales = balance(rows, cols)
        return Outer(rows.flatten(2), cols.flatten(2), self.groups, self.shape), scales

    def magnitude(self) -> Tensor:
        if self._magnitude is not None:
            return self._magnitude
        if self.groups > 1:
            return self._ungrouped().magnitude().view(self.batch, -1).square().sum(1).sqrt()
        return self._lengths_of_positions().square().sum(1).sqrt()

    @of_samples
    def _lengths_of_positions(self) -> Tensor:
        """Of the product of each position's row and column, ``[B, T]``."""
        return _lengths(self.rows) * _lengths(self.cols)

    def sq_norm_cost(self) -> Cost:
        if self.positions == 1:
            return Cost(2.0 * (self.rows.numel() + self.cols.numel()), 0.0)
        gram = float(self.batch * self.groups * self.positions**2)
        width = (self.rows.shape[2] + self.cols.shape[2]) / self.groups
        return Cost(2.0 * gram * width, 2.0 * gram)

    def materialize_cost(self) -> Cost:
        size = float(self.batch * self.shape.numel())
        return Cost(2.0 * self.positions * size, size)

    def _ungrouped(self, weights: Tensor | None = None) -> Outer:
        """The blocks as ``B * groups`` independent samples."""
        rows = self.rows if weights is None else scale_samples(self.rows, weights)
        return Outer(_blocks(rows, self.groups), _blocks(self.cols, self.groups))

    def _weigh_smaller(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        if self.rows.shape[2] <= self.cols.shape[2]:
            return scale_samples(self.rows, weights), self.cols
        return self.rows, scale_samples(self.cols, weights)


def _join(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The tensors of some samples each, as those of all."""
    return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))


class GramNorms(StackedNorms):
    """Of squares by Gram matrices, and squared lengths of rows and of columns.

    Attributes:
        magnitudes: of each sample's parts, ``[F, B]``.
    """

    are_fine: Tensor

    def _make(self, *tensors: Tensor) -> None:
        squares, row_sizes, col_sizes = tensors
        info, tolerated = torch.finfo(squares.dtype), _TOLERATED_ERROR[squares.dtype]
        products = row_sizes * col_sizes
        uncancelled = products.sqrt().sum(2).square_()
        largest = torch.maximum(row_sizes, col_sizes).amax(2)
        # Products of small entries vanish, each with less than the smallest number: beside huge
        # entries they count.
        width = max(max(f.shape[0], f.shape.numel() // f.shape[0]) for f in self.factors)
        vanished = 2 * row_sizes.shape[2] ** 2 * width * info.tiny / tolerated
        least = uncancelled.mul_(info.eps / tolerated).add_(largest, alpha=vanished)
        self.are_fine = (squares >= least) & (largest < info.max**0.25)
        self.magnitudes = products.sum(2).sqrt_()
        self.squares = cover_rounding(squares, self.magnitudes)

    def repair(self) -> None:
        """Evaluate again what Gram matrices cannot give: cancellation, and squares out of range."""
        for place, sample in (~self.are_fine).nonzero().tolist():
            gradient = self.sample(place, sample).materialize()
            square = Dense(gradient).sq_norm().squeeze(0)
            self.squares[place, sample] = cover_rounding(square, self.magnitudes[place, sample])


class SmallGramNorms(GramNorms):
    """Of the Gram matrices themselves, or of rows and columns where the factors are small.

    Sums of small ones are taken together, too.
    """

    has_sums = True

    @staticmethod
    def kind_of(raw: RawNorms, sizes: Hashable) -> Hashable:
        tensor = raw.tensors[0]
        return raw.shape_of(tensor)[:2], tensor.dtype, tensor.device

    def _join(self, found: Sequence[RawNorms]) -> tuple[Tensor, ...]:
        grams: list[tuple[Tensor, ...]] = []
        self._runs: list[tuple[int, tuple[Tensor, ...] | None]] = []
        for (kind, *_), run in groupby(found, lambda raw: raw.run):
            members = list(run)
            sides = stack_tensors(members)
            are_parts = members[0].are_parts
            grams.append(tuple(side @ side.mT for side in sides) if are_parts else sides)
            # Other factors lend their parts for norms, and are summed in a way of their own.
            count = members[0].joined or len(members)
            self._runs.append((count, sides if are_parts and kind is Outer else None))
        return _join(grams)

    def _make(self, *tensors: Tensor) -> None:
        rows, cols = tensors
        sizes = (gram.diagonal(dim1=2, dim2=3) for gram in tensors)
        super()._make((rows * cols).sum((2, 3)), *sizes)

    def weighted_sums(self, weights: Tensor) -> Sequence[Tensor | None]:
        sums: list[Tensor | None] = []
        parts = weights.split([count for count, _ in self._runs])
        for (count, sides), part in zip(self._runs, parts, strict=True):
            if sides is None:
                sums += [None] * count
                continue
            rows, cols = sides
            weighted = rows * part.to(rows.dtype)[:, :, None, None]
            sums += (weighted.flatten(1, 2).mT @ cols.flatten(1, 2)).unbind()
        return sums


class LengthNorms(StackedNorms):
    """Of the lengths of the one row and the one column that each sample has."""

    def _make(self, *tensors: Tensor) -> None:
        rows, cols = tensors
        info = torch.finfo(rows.dtype)
        smaller, larger = torch.minimum(rows, cols), torch.maximum(rows, cols)
        are_fine = (smaller > info.tiny**0.5 * 1e4) & (larger < info.max**0.5)
        self.are_fine = are_fine.squeeze(2)
        self.squares = (rows * cols).squeeze(2).square_()


def balance(rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both ``[B, T, groups, ...]`` with powers of two taken out, and those of each sample ``[B]``.

    Products of a row and its column are those of before divided by the sample's power of two.
    Rows are below two; columns too, and less where the product is small beside that of another
    position.
    """
    sizes = [peaks_of(tensor, 3) for tensor in (rows, cols)]
    scales = [power_of_two(size) for size in sizes]
    totals = (scales[0] * scales[1]).where((sizes[0] != 0) & (sizes[1] != 0), 0.0)
    largest = power_of_two(peaks_of(totals, 1))
    shares = (totals / largest.view(-1, 1, 1)).unsqueeze(-1)
    cols = cols / scales[1].unsqueeze(-1) * shares
    return rows / scales[0].unsqueeze(-1), cols, largest


def _lengths(tensor: Tensor) -> Tensor:
    """Length of every position, ``[B, T]``, also where squares would overflow or underflow."""
    if not tensor.shape[2]:
        return tensor.new_zeros(tensor.shape[:2])
    lengths = vector_norm(tensor, dim=2)
    info = torch.finfo(tensor.dtype)
    if not lengths.numel():
        return lengths
    shortest, longest = torch.aminmax(lengths)
    if is_true((shortest > info.tiny**0.5 * 1e4) & (longest < info.max**0.5)):
        return lengths
    peaks = vector_norm(tensor, torch.inf, dim=2, keepdim=True).clamp_min(info.tiny)
    return peaks.squeeze(2) * vector_norm(tensor / peaks, dim=2)


def _blocks(tensor: Tensor, groups: int) -> Tensor:
    batch, positions, width = tensor.shape
    split = tensor.view(batch, positions, groups, width // groups).transpose(1, 2)
    return split.reshape(batch * groups, positions, width // groups)
