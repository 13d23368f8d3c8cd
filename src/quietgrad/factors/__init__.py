"""Per-sample gradients kept factored: norms and weighted sums without materializing them."""

from quietgrad.factors.base import Cost, Dense, Factor, cover_rounding, to_float32, writable
from quietgrad.factors.combined import Combined, combine, dot
from quietgrad.factors.conv import Conv, Geometry
from quietgrad.factors.gather import Gather
from quietgrad.factors.outer import Outer
from quietgrad.factors.pullback import Pullback, Pulled
from quietgrad.factors.routed import Routed

__all__ = [
    "Combined",
    "Conv",
    "Cost",
    "Dense",
    "Factor",
    "Gather",
    "Geometry",
    "Outer",
    "Pullback",
    "Pulled",
    "Routed",
    "combine",
    "cover_rounding",
    "dot",
    "to_float32",
    "writable",
]
