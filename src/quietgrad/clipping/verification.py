"""Does a clipping function keep its guarantee? Probed on norms over the whole range of the floats.

A probe is no proof, but the ways in which such functions go wrong in practice are all visible here:
no bound at all, the radius ignored, a division by zero, a wrong sign, statistics of the batch,
randomness, edits in place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import NoReturn

import torch
from torch import Tensor

from quietgrad.clipping.contract import Clipping

_RADII = (1e-3, 0.1, 1.0, 2.7, 1e3)
_DTYPES = (torch.float32, torch.float64)
_TOLERANCE = 1e-6
# Vectorised and scalar kernels of one function may differ in their last bits.
_AGREEMENT = {torch.float32: 1e-5, torch.float64: 1e-10}
_SINGLES = 48


def verify(clipping: Clipping) -> None:
    """Raise a ValueError that names the norm and the radius at which the guarantee breaks."""
    # The caller may have made another device the default; the probes need real numbers at hand.
    with torch.device("cpu"), torch.no_grad():
        for radius, dtype in product(_RADII, _DTYPES):
            _Probe(clipping, radius, dtype).run()


def probe_norms(radius: float, dtype: torch.dtype) -> Tensor:
    """Zero, a log grid from 1e-30 to 1e30, norms near the radius, the ends of the range."""
    limits = torch.finfo(dtype)
    everywhere = torch.logspace(-30, 30, 1201, dtype=torch.float64)
    near_radius = radius * torch.linspace(0.01, 4.0, 400, dtype=torch.float64)
    tiny, huge = limits.smallest_normal, limits.max
    edges = torch.tensor([0.0, tiny / 10, tiny, radius, huge**0.5, huge / 2, huge], dtype=dtype)
    below = edges.nextafter(torch.zeros_like(edges))
    above = edges.nextafter(torch.full_like(edges, huge))
    return torch.cat([everywhere.to(dtype), near_radius.to(dtype), edges, below, above])


@dataclass(frozen=True)
class _Probe:
    """One clipping function at one radius in one dtype."""

    clipping: Clipping
    radius: float
    dtype: torch.dtype

    def run(self) -> None:
        norms = probe_norms(self.radius, self.dtype)
        weights = self.weights(norms)
        self.check_finite(norms, weights)
        self.check_sign(norms, weights)
        self.check_bound(norms, weights)
        self.check_same(norms, weights, self.weights(norms), "two calls with the same norms differ")
        for places, reshaped in _rearrangements(norms):
            again = self.weights(reshaped).reshape(-1)
            flaw = "the weight of a sample depends on the other samples or on the tensor's shape"
            self.check_same(norms[places], weights[places], again, flaw)
        for shape in ((0,), (0, 3)):
            self.weights(norms.new_empty(shape))

    def weights(self, norms: Tensor) -> Tensor:
        """The weights, refused if they are not a tensor like the norms or the norms were edited."""
        given = norms.clone()
        try:
            weights = self.clipping.weights(given, self.radius)
        except Exception as error:
            raise ValueError(
                self.message(f"it raises for norms of shape {tuple(norms.shape)}: {error}")
            ) from error
        if not isinstance(weights, Tensor):
            self.refuse(f"it returns {type(weights).__name__}, not a tensor")
        if weights.shape != norms.shape or weights.dtype != norms.dtype:
            self.refuse(
                f"for norms of shape {tuple(norms.shape)} it returns shape {tuple(weights.shape)}"
                f" and {weights.dtype}; both must be those of the norms"
            )
        if not given.equal(norms):
            self.refuse("it changes the norms in place")
        return weights

    def check_finite(self, norms: Tensor, weights: Tensor) -> None:
        broken = ~weights.isfinite()
        if broken.any():
            norm, weight = norms[broken][0].item(), weights[broken][0].item()
            self.refuse(f"at norm {norm:g} the weight is {weight:g}; it must be finite")

    def check_sign(self, norms: Tensor, weights: Tensor) -> None:
        """A negative weight would be private, and train the model away from its data."""
        broken = weights < 0
        if broken.any():
            norm, weight = norms[broken][0].item(), weights[broken][0].item()
            self.refuse(f"at norm {norm:g} the weight is {weight:g}; it must not be negative")

    def check_bound(self, norms: Tensor, weights: Tensor) -> None:
        """w(n) * n <= bound, up to rounding.

        Weights below the normal floats are rounded to a multiple of the smallest float; that much
        is allowed, and matters only at norms next to overflow.
        """
        bound = self.clipping.bound(self.radius)
        if not (isfinite(bound) and bound > 0):
            self.refuse(f"its bound is {bound}; it must be positive and finite")
        smallest = torch.finfo(self.dtype).smallest_normal * torch.finfo(self.dtype).eps
        lengths = weights.double() * norms.double()
        allowed = bound * (1 + _TOLERANCE) + norms.double() * smallest
        worst = int((lengths / allowed).argmax())
        if lengths[worst] > allowed[worst]:
            length = lengths[worst].item()
            self.refuse(
                f"at norm {norms[worst].item():g} the weight is {weights[worst].item():g}, so"
                f" weight * norm = {length:g} exceeds the bound {bound:g}"
                f" by a factor {length / bound:g}"
            )

    def check_same(self, norms: Tensor, weights: Tensor, again: Tensor, flaw: str) -> None:
        tolerance = _AGREEMENT[self.dtype] * weights.abs() + torch.finfo(self.dtype).tiny
        differs = ~((again - weights).abs() <= tolerance)
        if differs.any():
            norm, first, second = (x[differs][0].item() for x in (norms, weights, again))
            self.refuse(f"{flaw}: at norm {norm:g} the weight is {first:g} or {second:g}")

    def refuse(self, flaw: str) -> NoReturn:
        raise ValueError(self.message(flaw))

    def message(self, flaw: str) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        where = f"radius {self.radius:g}, {dtype}"
        return f"{self.clipping!r} is not a clipping function: {where}: {flaw}"


def _rearrangements(norms: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The same norms in other company: (places in `norms`, what to pass)."""
    count = len(norms)
    # The order is fixed: a refusal must not come and go with the state of the global generator.
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    yield shuffled, norms[shuffled]
    half = shuffled[: count // 4 * 2]
    yield half, norms[half].reshape(2, -1)
    yield half, norms[half].reshape(-1, 2)
    for place in torch.linspace(0, count - 1, _SINGLES).long():
        yield place.reshape(1), norms[place].reshape(1)
    yield shuffled[:1], norms[shuffled[0]]
