"""The contract of a grouping: groups of parameters, their radii, their sensitivity."""

import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isclose, isfinite, sqrt

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from quietgrad.clipping import Clipping
from quietgrad.clipping import resolve as resolve_clipping

Numbers = Sequence[float] | Mapping[str, float]
"""One number per group, in the order of the groups or by group name."""

_DEFAULT_RADIUS = 1.0


def radii_of(
    names: Sequence[str], radius: float, proportions: Numbers | None, radii: Numbers | None
) -> tuple[float, ...]:
    """R/sqrt(M) for each of the named groups, or R a_m/|a| by proportions, or the radii given."""
    if radii is not None:
        return _by_group(radii, names, "radii")
    if proportions is not None:
        shares = _by_group(proportions, names, "proportions")
        return tuple(radius * (share / hypot(*shares)) for share in shares)
    return (radius / sqrt(len(names)),) * len(names)


def total(radii: Numbers, stated: float) -> float:
    """R = sqrt(sum R_m^2); a radius stated besides must agree with it."""
    derived = hypot(*_values(radii))
    if stated != _DEFAULT_RADIUS and not isclose(stated, derived):
        raise ValueError(
            f"radius={stated:g} contradicts radii, whose total is {derived:g}: leave radius out, or"
            " give proportions instead of radii"
        )
    return derived


def frozen_numbers(numbers: Numbers, field: str) -> Numbers:
    """A copy the caller cannot change, of positive finite numbers."""
    if not _is_collection(numbers):
        raise TypeError(
            f"{field} must be a sequence of numbers or a mapping from group name to number,"
            f" got {type(numbers).__name__}"
        )
    if not numbers:
        raise ValueError(f"{field} is empty; leave it out for equal radii")
    keys = numbers if isinstance(numbers, Mapping) else range(len(numbers))
    for key, value in zip(keys, _values(numbers), strict=True):
        require_positive(value, f"{field}[{key!r}]")
    return dict(numbers) if isinstance(numbers, Mapping) else tuple(numbers)


def require_positive(value: float, what: str) -> None:
    """Raise an error that names `what` unless the value is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number, got {type(value).__name__}")
    if value > sys.float_info.max and isinstance(value, int):
        raise ValueError(f"{what} must be positive and finite, got an integer beyond all floats")
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{what} must be positive and finite, got {value}")


def _by_group(numbers: Numbers, names: Sequence[str], field: str) -> tuple[float, ...]:
    """The number of each group, in the order of the groups."""
    if isinstance(numbers, Mapping):
        unknown, missing = set(numbers) - set(names), set(names) - set(numbers)
        if unknown or missing:
            raise ValueError(
                f"{field} must name every group once; unknown: {sorted(unknown)},"
                f" missing: {sorted(missing)}; the groups are {list(names)}"
            )
        return tuple(numbers[name] for name in names)
    if len(numbers) != len(names):
        raise ValueError(
            f"{field} has {len(numbers)} numbers for {len(names)} groups: {list(names)}"
        )
    return tuple(numbers)


def _is_collection(value: object) -> bool:
    return isinstance(value, Sequence | Mapping) and not isinstance(value, str)


def _values(numbers: Numbers) -> tuple[float, ...]:
    return tuple(numbers.values() if isinstance(numbers, Mapping) else numbers)


Partition = Mapping[str, Sequence[str]]
"""Group name -> names of its parameters, in order."""


@dataclass(frozen=True)
class Group:
    """Parameters whose joint per-sample gradient is clipped with one weight, at one radius."""

    name: str
    parameters: tuple[str, ...]
    radius: float

    def __post_init__(self) -> None:
        require_positive(self.radius, f"the radius of group {self.name!r}")
        if not self.parameters:
            raise ValueError(f"group {self.name!r} has no parameters")


@dataclass(frozen=True, kw_only=True)
class Grouping(ABC):
    """Splits a model's trainable parameters into groups, and the radius among them.

    A subclass is a frozen dataclass that implements `partition`; the radii follow from the fields:

    | given         | radius of group m                                                       |
    | ------------- | ----------------------------------------------------------------------- |
    | `radius` only | R_m = R/sqrt(M), as in "On the Efficacy of Group-wise Clipping"         |
    | `proportions` | R_m = R a_m/|a|: by theorems 1 and 2 of "Automatic Clipping" (App. B.3) |
    |               | scaling R then equals scaling the learning rate                         |
    | `radii`       | R_m as given, and `radius` becomes R = sqrt(sum R_m^2)                  |

    In every case sqrt(sum R_m^2) = R. `proportions` and `radii` hold one positive number per group,
    in the order of the groups or by group name.
    """

    radius: float = 1.0
    proportions: Numbers | None = None
    radii: Numbers | None = None

    def __post_init__(self) -> None:
        if self.proportions is not None and self.radii is not None:
            raise ValueError("give either proportions or radii, not both")
        for field in ("proportions", "radii"):
            if (numbers := getattr(self, field)) is not None:
                object.__setattr__(self, field, frozen_numbers(numbers, field))
        if self.radii is not None:
            object.__setattr__(self, "radius", total(self.radii, self.radius))
        require_positive(self.radius, "the radius")

    @abstractmethod
    def partition(self, model: nn.Module) -> Partition:
        """Group name -> parameter names; together every trainable parameter exactly once."""

    def groups(self, model: nn.Module) -> tuple[Group, ...]:
        """The groups of this model with their radii."""
        partition = self.partition(model)
        radii = radii_of(tuple(partition), self.radius, self.proportions, self.radii)
        return tuple(
            Group(name, tuple(parameters), radius)
            for (name, parameters), radius in zip(partition.items(), radii, strict=True)
        )


def trainable(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters to train; a tied weight counts once, under its first name."""
    names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    if not names:
        raise ValueError(
            f"{type(model).__name__} has no trainable parameter: set requires_grad where needed"
        )
    return names


def owner_path(model: nn.Module, parameter: str) -> str:
    """Path of the layer that owns a parameter ("" is the model itself).

    That is the module right above it, except that `torch.nn.utils.parametrize` moves a parameter
    into submodules of its layer, and that ParameterList and ParameterDict are only shelves in one.
    """
    path = parameter.rpartition(".")[0]
    prefix = ""
    for step in path.split("."):
        if step == "parametrizations" and parametrize.is_parametrized(model.get_submodule(prefix)):
            return prefix
        prefix = f"{prefix}.{step}" if prefix else step
    while path and isinstance(model.get_submodule(path), nn.ParameterList | nn.ParameterDict):
        path = path.rpartition(".")[0]
    return path


def by_layer(model: nn.Module) -> dict[str, list[str]]:
    """Path of each layer that owns trainable parameters -> their names, in order."""
    layers: dict[str, list[str]] = {}
    for name in trainable(model):
        layers.setdefault(owner_path(model, name), []).append(name)
    return layers


_BY_CLASS: dict[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear, nn.Bilinear),
    "conv": (_ConvNd,),
    "norm": (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    "embedding": (nn.Embedding, nn.EmbeddingBag),
    "recurrent": (nn.RNNBase, nn.RNNCellBase),
    "attention": (nn.MultiheadAttention,),
}

# Libraries write their own layers (LlamaRMSNorm, T5LayerNorm, ViTEmbeddings): the name tells.
_BY_SUFFIX = {
    "linear": "linear",
    "conv": "conv",
    "norm": "norm",
    "embedding": "embedding",
    "embeddings": "embedding",
    "rnn": "recurrent",
    "lstm": "recurrent",
    "gru": "recurrent",
    "attention": "attention",
}

# A linear layer with a transposed weight, despite its name.
_TRANSPOSED_LINEAR = "transformers.pytorch_utils.Conv1D"


def kind_of(module: nn.Module) -> str:
    """The kind of a layer: by its class where torch defines it, else by the name of its class."""
    for kind, classes in _BY_CLASS.items():
        if isinstance(module, classes):
            return kind
    for cls in type(module).__mro__:
        if named := _kind_by_name(cls):
            return named
    return "other"


def _kind_by_name(cls: type) -> str | None:
    if f"{cls.__module__}.{cls.__qualname__}" == _TRANSPOSED_LINEAR:
        return "linear"
    name = re.sub(r"[123]d$", "", cls.__name__.lower())
    return next((kind for suffix, kind in _BY_SUFFIX.items() if name.endswith(suffix)), None)


def sensitivity(groups: Sequence[Group], clipping: str | Clipping) -> float:
    """sqrt(sum_m bound(R_m)^2): how far one sample can move the clipped sum of all groups.

    "On the Efficacy of Group-wise Clipping", section 1: the noise of every group is scaled with
    |[R_1, ..., R_M]|. For `reparam` each group's bound is 1, which makes it sqrt(M).
    """
    if not groups:
        raise ValueError("the sensitivity of no groups would be 0, and so would the noise")
    bound = resolve_clipping(clipping).bound
    return hypot(*(bound(group.radius) for group in groups))


def validate(groups: Sequence[Group], model: nn.Module) -> tuple[Group, ...]:
    """The groups as a tuple, or an error that lists what is missing, doubled, frozen or unknown.

    A parameter in no group would be released without clipping, one in two groups would be counted
    twice: either breaks the sensitivity the noise is scaled with.
    """
    for group in groups:
        if not isinstance(group, Group):
            raise TypeError(f"a grouping must return Group objects, got {type(group).__name__}")
        require_positive(group.radius, f"the radius of group {group.name!r}")
    expected = trainable(model)
    known = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    placed = Counter(name for group in groups for name in group.parameters)
    present = set(expected)
    flaws = {
        "in no group": [name for name in expected if name not in placed],
        "in several groups": [name for name, times in placed.items() if times > 1],
        "frozen, or tied to an earlier name": [n for n in placed if n in known - present],
        "not in the model": [name for name in placed if name not in known],
        "group names used twice": _repeated(group.name for group in groups),
    }
    found = "; ".join(f"{flaw}: {names}" for flaw, names in flaws.items() if names)
    if found:
        raise ValueError(f"the groups do not fit {type(model).__name__}: {found}")
    return tuple(groups)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]
