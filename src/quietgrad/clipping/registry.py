"""Clipping functions by name, and the gate every one of them passes."""

from dataclasses import dataclass, field
from functools import cache

from torch import Tensor

from quietgrad._names import described, unknown_name
from quietgrad.clipping.contract import Clipping, WeightFunction
from quietgrad.clipping.functions import PSAC, Abadi, AutoS, AutoV, Global, Reparam
from quietgrad.clipping.verification import verify

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
