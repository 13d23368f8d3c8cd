"""Sources of noise by name."""

from collections.abc import Callable

from quietgrad._names import unknown_name
from quietgrad.noise.contract import Noise
from quietgrad.noise.fast import FastNoise
from quietgrad.noise.secure import SecureNoise

_SOURCES: dict[str, Callable[[int | None], Noise]] = {"secure": SecureNoise, "fast": FastNoise}


def names() -> tuple[str, ...]:
    """The names `resolve` understands."""
    return tuple(_SOURCES)


def resolve(name: str, seed: int | None = None) -> Noise:
    """The source of this name; ValueError, with the nearest names, if there is none."""
    if name not in _SOURCES:
        raise unknown_name("noise", name, names())
    return _SOURCES[name](seed)
