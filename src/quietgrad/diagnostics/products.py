"""Vectors that are known by their inner products: combinations of them, lengths and angles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
