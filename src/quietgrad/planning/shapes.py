"""What a factor is made of: its tensors, and T, d and p."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quietgrad.factors import Combined, Conv, Factor, Gather, Outer, Pulled


@dataclass(frozen=True)
class Shape:
    """T, d and p of the use of a parameter; None where it is no sum over positions.

    Attributes:
        size: numbers per sample, to find the largest.
        positions: T.
        inputs: d.
        outputs: p.
    """

    size: int
    positions: int | None = None
    inputs: int | None = None
    outputs: int | None = None


def shape_of(factor: Factor) -> Shape:
    """T, d and p. A look-up has one number that goes in at each position, an index."""
    match factor:
        case Outer():
            return _shape(factor.rows.shape[1], factor.cols.shape[2], factor.rows.shape[2])
        case Gather():
            return _shape(factor.ids.shape[1], 1, factor.values.shape[2])
        case Conv():
            return _of_convolution(factor)
        case Pulled():
            return shape_of(factor.inner)
        case Combined():
            return max((shape_of(part) for part in factor.parts), key=lambda shape: shape.size)
        case _:
            return Shape(factor.shape.numel())


def tensors_of(part: Any) -> Iterator[Tensor]:
    """All tensors in a factor, whatever it calls them."""
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for child in part:
            yield from tensors_of(child)
    elif type(part).__module__.startswith("quietgrad.factors"):
        for child in vars(part).values():
            yield from tensors_of(child)


def _of_convolution(factor: Conv) -> Shape:
    grid = (factor.inputs if factor.geometry.transposed else factor.grads).shape[3:]
    width = factor.shape[1:].numel() * factor.geometry.groups
    return _shape(factor.images * math.prod(grid), width, factor.shape[0])


def _shape(positions: int, inputs: int, outputs: int) -> Shape:
    return Shape(positions * (inputs + outputs), positions, inputs, outputs)
