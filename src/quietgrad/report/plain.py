"""Dataclasses to plain data and back, and plain data that strict JSON can hold."""

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints


def plain(value: Any) -> Any:
    """As dictionaries, lists, strings and finite numbers; infinity becomes a word."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = ((each.name, getattr(value, each.name)) for each in dataclasses.fields(value))
        return {name: plain(each) for name, each in named}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else _word(value)
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    if hasattr(value, "item"):  # a number of numpy's or torch's
        return plain(value.item())
    raise TypeError(f"{value!r} is not plain data: expected numbers, strings, lists and mappings")


def restored(kind: Any, data: Any) -> Any:
    """What `plain` was given, of this type; ValueError if it was something else."""
    options = get_args(kind)
    if get_origin(kind) in (Union, types.UnionType):
        if data is None and type(None) in options:
            return None
        (kind,) = (each for each in options if each is not type(None))
        return restored(kind, data)
    if get_origin(kind) is tuple:
        return _tuple(options, data)
    if dataclasses.is_dataclass(kind):
        return _instance(kind, data)
    if kind is float:
        return float(data)
    return data


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise ValueError(f"expected a list, got {data!r}")
    if kinds[-1] is Ellipsis:
        return tuple(restored(kinds[0], each) for each in data)
    return tuple(restored(kind, each) for kind, each in zip(kinds, data, strict=True))


def _instance(kind: Any, data: Any) -> Any:
    hints = get_type_hints(kind)
    if not isinstance(data, dict) or set(data) != set(hints):
        raise ValueError(f"not a {kind.__name__}: expected the fields {', '.join(hints)}")
    return kind(**{name: restored(hint, data[name]) for name, hint in hints.items()})


def _word(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return "infinity" if value > 0 else "-infinity"
