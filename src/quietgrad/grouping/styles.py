"""Groupings by layer, parameter, type and name, and the registry of groupings."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import hypot, isclose

from torch import nn

from quietgrad._checks import described, unknown_name
from quietgrad.grouping.base import (
    Group,
    Grouping,
    Partition,
    by_layer,
    kind_of,
    trainable,
    validate,
)
from quietgrad.grouping.blocks import BlockWise, Uniform

_ROOT = "(model)"


@dataclass(frozen=True, kw_only=True)
class AllLayer(Grouping):
    """One group with every parameter: flat clipping (Abadi et al. 2016), M = 1."""

    def partition(self, model: nn.Module) -> Partition:
        """All parameters in "all"."""
        return {"all": trainable(model)}


@dataclass(frozen=True, kw_only=True)
class LayerWise(Grouping):
    """One group per module that owns parameters, so weight and bias are clipped together.

    The originals of a parametrized weight belong to the module that is parametrized.
    """

    def partition(self, model: nn.Module) -> Partition:
        """Path of each layer -> its parameters."""
        return {path or _ROOT: names for path, names in by_layer(model).items()}


@dataclass(frozen=True, kw_only=True)
class ParamWise(Grouping):
    """One group per parameter."""

    def partition(self, model: nn.Module) -> Partition:
        """Each parameter under its own name."""
        return {name: (name,) for name in trainable(model)}


@dataclass(frozen=True, kw_only=True)
class TypeWise(Grouping):
    """One group per kind of layer (McMahan et al. 2018).

    The kinds are linear, conv, norm, embedding, recurrent, attention and other; those a model lacks
    make no group. A parameter's kind is that of the module that owns it.
    """

    def partition(self, model: nn.Module) -> Partition:
        """Kind of layer -> the parameters of all such layers."""
        kinds: dict[str, list[str]] = {}
        for path, names in by_layer(model).items():
            kinds.setdefault(kind_of(model.get_submodule(path)), []).extend(names)
        return kinds


Pattern = str | re.Pattern[str]
"""A glob for the whole name ("*.attn.*"), or a compiled regular expression to search it with."""

Patterns = Mapping[str, Pattern] | Sequence[tuple[str, Pattern]]
"""Group name -> pattern, or pairs of them, in which a group's name may occur several times."""

_REST = "rest"


@dataclass(frozen=True)
class ByName(Grouping):
    """Groups by parameter name; the first pattern that matches a parameter takes it.

    A string is a glob over the whole name, `re.compile(...)` is searched in it. Parameters no
    pattern matches are an error unless `rest=True` collects them in the group "rest", and so is a
    pattern that takes no parameter.

    Example: `ByName({"attention": "*.attn.*", "norms": re.compile(r"ln_[0-9]")}, rest=True)`
    """

    patterns: Patterns
    rest: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _check_patterns(self.patterns)
        object.__setattr__(self, "patterns", pairs)
        if not pairs:
            raise ValueError("ByName needs at least one pattern")
        if self.rest and any(group == _REST for group, _ in pairs):
            raise ValueError(f"rest=True makes a group {_REST!r}; give that pattern another name")

    def partition(self, model: nn.Module) -> Partition:
        """Group name -> what its patterns take, then "rest"."""
        pairs = _check_patterns(self.patterns)
        taken: list[list[str]] = [[] for _ in pairs]
        left: list[str] = []
        for name in trainable(model):
            first = next((i for i, (_, pattern) in enumerate(pairs) if _match(pattern, name)), None)
            (left if first is None else taken[first]).append(name)
        _require_used(pairs, taken)
        if left and not self.rest:
            raise ValueError(f"no pattern matches {left}; add patterns, or set rest=True")
        groups: dict[str, list[str]] = {}
        for (group, _), names in zip(pairs, taken, strict=True):
            groups.setdefault(group, []).extend(names)
        return {**groups, _REST: left} if left else groups


def _check_patterns(patterns: Patterns) -> tuple[tuple[str, Pattern], ...]:
    """The (group, pattern) pairs in order, each checked."""
    pairs = tuple(patterns.items() if isinstance(patterns, Mapping) else patterns)
    for pair in pairs:
        match pair:
            case (str(), str() | re.Pattern()):
                continue
        raise TypeError(f"ByName takes (group name, glob or re.Pattern), got {pair!r}")
    return pairs


def _match(pattern: Pattern, name: str) -> bool:
    if isinstance(pattern, re.Pattern):
        return pattern.search(name) is not None
    return fnmatchcase(name, pattern)


def _require_used(pairs: Sequence[tuple[str, Pattern]], taken: Sequence[Sequence[str]]) -> None:
    idle = [pair for pair, names in zip(pairs, taken, strict=True) if not names]
    if idle:
        raise ValueError(
            "these patterns take no trainable parameter (misspelt, all frozen, or an earlier"
            f" pattern matches first): {idle}"
        )


Lists = Mapping[str, Iterable[str]] | Sequence[tuple[str, Iterable[str]]]
"""Group name -> names of its parameters, or pairs of them."""


@dataclass(frozen=True)
class Listed(Grouping):
    """Groups with their parameters by full name, such as `quietgrad.plan` finds them.

    Together they must be every trainable parameter of the model, once.

    Example: `Listed({"body": ["0.weight", "0.bias"], "head": ["2.weight", "2.bias"]})`
    """

    lists: Lists

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = _check_lists(self.lists)
        object.__setattr__(self, "lists", pairs)
        if not pairs:
            raise ValueError("Listed needs at least one group")
        if len(dict(pairs)) < len(pairs):
            raise ValueError(f"group names used twice in {[group for group, _ in pairs]}")

    def partition(self, model: nn.Module) -> Partition:
        """As they were listed."""
        return dict(_check_lists(self.lists))


def _check_lists(lists: Lists) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The groups in order, each checked."""
    pairs = tuple(lists.items() if isinstance(lists, Mapping) else lists)
    for pair in pairs:
        match pair:
            case (str(), list() | tuple() as names) if all(isinstance(name, str) for name in names):
                continue
        raise TypeError(f"Listed takes (group name, list of parameter names), got {pair!r}")
    return tuple((group, tuple(names)) for group, names in pairs)


Factory = Callable[..., Grouping]
"""Called as factory(radius=R); a Grouping class whose other fields have defaults is one."""

_REGISTRY: dict[str, Factory] = {
    "all-layer": AllLayer,
    "layer-wise": LayerWise,
    "param-wise": ParamWise,
    "type-wise": TypeWise,
    "block-wise": BlockWise,
}
_UNIFORM = "uniform"
PER_DEVICE = "per-device"
"""Understood by the engine of a pipeline: one group for each of its stages."""
AUTO = "auto"
"""Understood by what knows which shapes to plan for: the engine, with ``example=``."""


def names() -> tuple[str, ...]:
    """The names `resolve` understands, besides "uniform:M" for any M."""
    return tuple(_REGISTRY)


def resolve(
    spec: str | Grouping, model: nn.Module, radius: float | None = None
) -> tuple[Group, ...]:
    """The validated groups of a model: every trainable parameter in exactly one of them.

    `radius` is for names only (1.0 if left out); a Grouping object has its own. Raises ValueError
    for an unknown name or a grouping that does not fit the model, naming the parameters.
    """
    if isinstance(spec, str):
        return _resolve_name(spec, model, 1.0 if radius is None else radius)
    if not isinstance(spec, Grouping):
        raise TypeError(f"grouping must be a name or a Grouping instance, got {described(spec)}")
    if radius is not None:
        raise ValueError(
            f"the radius is given twice: {type(spec).__name__} has radius={spec.radius:g}, and"
            f" radius={radius:g} was passed besides; keep the one in the grouping"
        )
    return validate(spec.groups(model), model)


def register(name: str, factory: Factory) -> None:
    """Make factory(radius=R) -> Grouping available as `name`. Names cannot be replaced."""
    if not isinstance(name, str) or not name or ":" in name:
        raise ValueError(f"a grouping's name must be a non-empty string without ':', got {name!r}")
    if name in _REGISTRY or name in (_UNIFORM, AUTO, PER_DEVICE):
        raise ValueError(f"grouping {name!r} exists already; register under another name")
    if not callable(factory):
        raise TypeError(
            f"register takes a factory, called as factory(radius=R), got {type(factory).__name__}"
        )
    _build(name, factory, 1.0)
    _REGISTRY[name] = factory


def _resolve_name(name: str, model: nn.Module, radius: float) -> tuple[Group, ...]:
    grouping = _build(name, _factory(name), radius)
    groups = validate(grouping.groups(model), model)
    total = hypot(*(group.radius for group in groups))
    if not isclose(total, radius, rel_tol=1e-6):
        raise ValueError(f"grouping {name!r} was asked for radius {radius:g} but has {total:g}")
    return groups


def _build(name: str, factory: Factory, radius: float) -> Grouping:
    grouping = factory(radius=radius)
    if not isinstance(grouping, Grouping):
        raise TypeError(f"the factory of {name!r} must return a Grouping, got {grouping!r}")
    return grouping


def _factory(name: str) -> Factory:
    if name in _REGISTRY:
        return _REGISTRY[name]
    if name == AUTO:
        raise ValueError(
            "grouping 'auto' plans for the shapes of an example, and there is none here: pass"
            " quietgrad.AutoGrouping(batch, loss_fn), with a batch of public shape, or the"
            " .grouping of quietgrad.plan(model, batch, loss_fn)"
        )
    if name == PER_DEVICE:
        raise ValueError(
            "grouping 'per-device' is for the stages of a pipeline, and there is none here: pass"
            " PrivacyEngine(..., pipeline=schedule), or use 'all-layer'"
        )
    style, _, count = name.partition(":")
    if style == _UNIFORM and count.isdecimal():
        return lambda radius: Uniform(int(count), radius=radius)
    more = ", and 'uniform:4' for four groups (any number)"
    raise unknown_name("grouping", name, (*names(), AUTO), more)
