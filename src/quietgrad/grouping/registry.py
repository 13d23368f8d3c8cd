"""Groupings by name, and the gate from a specification to validated groups."""

from collections.abc import Callable
from math import hypot, isclose

from torch import nn

from quietgrad._names import described, unknown_name
from quietgrad.grouping.block_styles import BlockWise, Uniform
from quietgrad.grouping.contract import Group, Grouping
from quietgrad.grouping.styles import AllLayer, LayerWise, ParamWise, TypeWise
from quietgrad.grouping.validation import validate

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
    if name in _REGISTRY or name in (_UNIFORM, AUTO):
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
    style, _, count = name.partition(":")
    if style == _UNIFORM and count.isdecimal():
        return lambda radius: Uniform(int(count), radius=radius)
    more = ", and 'uniform:4' for four groups (any number)"
    raise unknown_name("grouping", name, (*names(), AUTO), more)
