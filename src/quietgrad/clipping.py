"""Clipping: per-sample gradient norms -> weights, sum_i w(|g_i|) g_i.

| name    | weight w(n; R)                | bound | options      |
| ------- | ----------------------------- | ----- | ------------ |
| abadi   | min(1, R/n)                   | R     |              |
| reparam | min(1/R, 1/n)                 | 1     |              |
| global  | 1 if n < R else 0             | R     |              |
| auto-v  | R/n                           | R     |              |
| auto-s  | R/(n + gamma)                 | R     | gamma = 0.01 |
| psac    | R/(n + r/(n + r))             | R     | r = 0.1      |

Say `"auto-s"` for the defaults or `AutoS(gamma=0.1)` for other options. `register` adds a function
of your own under a name, after checking that it keeps w(n) * n <= R.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import isfinite
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn.functional import threshold

from quietgrad._checks import described, unknown_name

WeightFunction = Callable[[Tensor, float], Tensor]
"""A plain `weights(norms, radius)`, as `register` accepts it."""


class Clipping(ABC):
    """A weight for every sample, from its gradient norm and the radius of its group.

    Guarantee: w(n; R) * n <= bound(R) for every norm n >= 0, so adding or leaving out one sample
    moves the weighted sum of a group's gradients by at most bound(R).

    A subclass is a frozen dataclass with hashable fields: `resolve` verifies an instance once, and
    what was verified must not change afterwards.
    """

    @abstractmethod
    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """The weight of each norm: same shape and dtype (float32 or float64), finite, at least 0.

        A weight must depend on its own norm alone. One that looks at the other samples (their
        maximum, mean or number) makes the sum of all samples move when one of them leaves.
        """

    def bound(self, radius: float) -> float:
        """An upper bound of w(n; R) * n over all norms n: the sensitivity of one group."""
        return radius


@dataclass(frozen=True)
class Abadi(Clipping):
    """w(n) = min(1, R/n): shorten long gradients to R, keep short ones (Abadi et al. 2016, Alg. 1).

    | norm   | weight | contribution w * n |
    | ------ | ------ | ------------------ |
    | 0      | 1      | 0                  |
    | n <= R | 1      | n                  |
    | huge   | R/n    | R                  |

    >>> Abadi().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([1.0000, 1.0000, 0.5000])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """min(1, R/n)."""
        return _ratio(radius, norms.clamp(min=_at_least_tiny(radius, norms)))


@dataclass(frozen=True)
class Reparam(Clipping):
    """w(n) = min(1/R, 1/n): Abadi's function divided by R, which frees the learning rate from R.

    De et al. 2022, "Unlocking high-accuracy differentially private image classification through
    scale", section 3. Its bound is 1 whatever the radius.

    | norm   | weight | contribution w * n |
    | ------ | ------ | ------------------ |
    | 0      | 1/R    | 0                  |
    | n <= R | 1/R    | n/R                |
    | huge   | 1/n    | 1                  |

    >>> Reparam().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([0.5000, 0.5000, 0.2500])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """min(1/R, 1/n)."""
        return _ratio(1.0, norms.clamp(min=_at_least_tiny(radius, norms)))

    def bound(self, radius: float) -> float:
        """1, whatever the radius."""
        return 1.0


@dataclass(frozen=True)
class Global(Clipping):
    """w(n) = 1 if n < R else 0: keep a gradient as it is, or drop it (Bu et al. 2021).

    "On the convergence and calibration of deep learning with differential privacy", the global
    clipping.

    | norm   | weight | contribution w * n |
    | ------ | ------ | ------------------ |
    | 0      | 1      | 0                  |
    | n < R  | 1      | n                  |
    | n >= R | 0      | 0                  |

    >>> Global().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([1., 1., 0.])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """1 if n < R else 0."""
        return (norms < radius).to(norms.dtype)


@dataclass(frozen=True)
class AutoV(Clipping):
    """w(n) = R/n: every gradient gets length R (Bu et al., "Automatic Clipping", eq. 3.1).

    | norm   | weight                      | contribution w * n |
    | ------ | --------------------------- | ------------------ |
    | 0      | 0: there is no direction    | 0                  |
    | tiny   | R/n, or the largest float   | R, or less         |
    | huge   | R/n                         | R                  |

    >>> AutoV().weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([0.0000, 2.0000, 0.5000])
    """

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """R/n, and 0 for n = 0."""
        return _ratio(radius, norms).where(norms > 0, norms.new_zeros(()))


@dataclass(frozen=True)
class AutoS(Clipping):
    """w(n) = R/(n + gamma): AUTO-V with a stability constant.

    Bu et al., "Automatic Clipping", eq. 3.5; with R = 1 it is eq. 4.1. gamma > 0 keeps the order of
    small gradients, which AUTO-V loses.

    | norm   | weight    | contribution w * n |
    | ------ | --------- | ------------------ |
    | 0      | R/gamma   | 0                  |
    | huge   | R/n       | R                  |

    >>> AutoS(gamma=1.0).weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.0)
    tensor([2.0000, 1.0000, 0.4000])
    """

    gamma: float = 0.01

    def __post_init__(self) -> None:
        if not (isfinite(self.gamma) and self.gamma > 0):
            raise ValueError(f"AutoS needs a finite gamma > 0, got {self.gamma}")

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """R/(n + gamma)."""
        return _ratio(radius, norms + _at_least_tiny(self.gamma, norms))


@dataclass(frozen=True)
class PSAC(Clipping):
    """w(n) = R/(n + r/(n + r)): small gradients keep a weight near R instead of R/gamma.

    Xia et al., "Differentially Private Learning with Per-Sample Adaptive Clipping", the weight
    function of section 4 (line 5 of its algorithm), with their C as R. Not monotonic: the largest
    weight is R/(2 sqrt(r) - r), at n = sqrt(r) - r.

    | norm   | weight    | contribution w * n |
    | ------ | --------- | ------------------ |
    | 0      | R         | 0                  |
    | huge   | R/n       | R                  |

    >>> PSAC(r=1.0).weights(torch.tensor([0.0, 1.0, 4.0]), radius=2.1)
    tensor([2.1000, 1.4000, 0.5000])
    """

    r: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.r <= 1:
            raise ValueError(f"PSAC needs 0 < r <= 1, got {self.r}")

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """R/(n + r/(n + r))."""
        r = _at_least_tiny(self.r, norms)
        return _ratio(radius, norms + r / (norms + r))


def _ratio(numerator: float, denominators: Tensor) -> Tensor:
    """The quotients, finite and never rounded up beyond one unit in the last place.

    Overflow stops at the largest float. Quotients too small for a normal float become 0: there the
    spacing of floats is coarse, and a weight rounded up could exceed the bound at a huge norm.
    """
    dtype = torch.finfo(denominators.dtype)
    # A tensor on both sides: torch divides a plain number by multiplying it with the reciprocal,
    # which overflows before the quotient does.
    quotients = denominators.new_full((), numerator) / denominators
    return threshold(quotients.clamp(max=dtype.max), dtype.tiny, 0.0)


def _at_least_tiny(constant: float, like: Tensor) -> float:
    """A positive constant that stays positive in the dtype of `like`, so that 0/0 cannot arise."""
    return max(constant, torch.finfo(like.dtype).tiny)


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
    everywhere = torch.logspace(-30, 30, 1201, dtype=torch.float64, device="cpu")
    near_radius = radius * torch.linspace(0.01, 4.0, 400, dtype=torch.float64, device="cpu")
    tiny, huge = limits.smallest_normal, limits.max
    edges = torch.tensor(
        [0.0, tiny / 10, tiny, radius, huge**0.5, huge / 2, huge], dtype=dtype, device="cpu"
    )
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
        # A plain function is known to its author by the name it is registered under.
        name = self.clipping.name if isinstance(self.clipping, Registered) else self.clipping
        return f"{name!r} is not a clipping function: {where}: {flaw}"


def _rearrangements(norms: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The same norms in other company: (places in `norms`, what to pass)."""
    count = len(norms)
    # The order is fixed: a refusal must not come and go with the state of the global generator.
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0), device="cpu")
    yield shuffled, norms[shuffled]
    half = shuffled[: count // 4 * 2]
    yield half, norms[half].reshape(2, -1)
    yield half, norms[half].reshape(-1, 2)
    for place in torch.linspace(0, count - 1, _SINGLES, device="cpu").long():
        yield place.reshape(1), norms[place].reshape(1)
    yield shuffled[:1], norms[shuffled[0]]


_REGISTRY: dict[str, Clipping] = {
    "abadi": Abadi(),
    "reparam": Reparam(),
    "global": Global(),
    "auto-v": AutoV(),
    "auto-s": AutoS(),
    "psac": PSAC(),
}


@dataclass(frozen=True)
class Registered(Clipping):
    """A user's plain function as a Clipping, with the radius as its bound."""

    name: str
    function: WeightFunction = field(repr=False)

    def weights(self, norms: Tensor, radius: float) -> Tensor:
        """What the function says."""
        return self.function(norms, radius)


def names() -> tuple[str, ...]:
    """The names `resolve` understands."""
    return tuple(_REGISTRY)


def resolve(spec: str | Clipping) -> Clipping:
    """The clipping function of this name, or the given one once it is verified.

    Raises ValueError for an unknown name or a function that breaks its bound, TypeError for
    anything that is neither a name nor a Clipping.

    >>> resolve("auto-s")
    AutoS(gamma=0.01)
    """
    if isinstance(spec, str):
        if spec not in _REGISTRY:
            raise unknown_name("clipping", spec, names())
        spec = _REGISTRY[spec]
    if not isinstance(spec, Clipping):
        raise TypeError(
            f"clipping must be a name or a Clipping instance, got {described(spec)};"
            " a plain function gets a name with quietgrad.clipping.register"
        )
    _require_frozen(spec)
    _verify_once(spec)
    return spec


def register(name: str, clipping: WeightFunction | Clipping) -> None:
    """Make `clipping` available as `name`: a function weights(norms, radius), or an instance.

    It is accepted if on a wide range of norms and radii w(n) * n stays within the radius (for an
    instance: within its own bound), and the weights are finite, not negative, deterministic and
    elementwise.
    Otherwise a ValueError says where it breaks. Names cannot be replaced.

    Example: `register("soft", lambda norms, radius: radius / (norms + (-norms).exp()))`
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a clipping function must be a non-empty string, got {name!r}")
    if name in _REGISTRY:
        raise ValueError(f"clipping {name!r} exists already; register under another name")
    if isinstance(clipping, type) or not (isinstance(clipping, Clipping) or callable(clipping)):
        raise TypeError(
            f"register takes a function (norms, radius) -> weights or a Clipping instance,"
            f" got {described(clipping)}"
        )
    entry = clipping if isinstance(clipping, Clipping) else Registered(name, clipping)
    _REGISTRY[name] = resolve(entry)


@cache
def _verify_once(clipping: Clipping) -> None:
    """Equal frozen instances behave equally, so one verification serves them all."""
    verify(clipping)


def _require_frozen(clipping: Clipping) -> None:
    """Refuse what could change after it was verified."""
    kind = type(clipping)
    # Looked up on the class itself: an undecorated subclass of a frozen dataclass is not frozen.
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise TypeError(
            f"{kind.__name__} must be a frozen dataclass (@dataclass(frozen=True)), so that it"
            " stays as it was verified"
        )
    try:
        hash(clipping)
    except TypeError as error:
        raise TypeError(f"the fields of {kind.__name__} must be hashable: {error}") from error


__all__ = [
    "PSAC",
    "Abadi",
    "AutoS",
    "AutoV",
    "Clipping",
    "Global",
    "Reparam",
    "WeightFunction",
    "names",
    "register",
    "resolve",
]
