"""Samplers by name."""

from collections.abc import Callable

from quietgrad._names import described, unknown_name
from quietgrad.sampling.draws import Sampler
from quietgrad.sampling.full_batch import FullBatchSampler
from quietgrad.sampling.poisson import PoissonSampler
from quietgrad.sampling.shuffled import ShuffledSampler

_REGISTRY: dict[str, Callable[[], Sampler]] = {
    "poisson": PoissonSampler,
    "shuffled": ShuffledSampler,
    "full-batch": FullBatchSampler,
}


def names() -> tuple[str, ...]:
    """The names `resolve` understands; "poisson" also with a largest batch, "poisson:320"."""
    return tuple(_REGISTRY)


def resolve(spec: str | Sampler) -> Sampler:
    """The sampler of this name, or the given one.

    Raises ValueError for an unknown name, TypeError for anything that is neither a name nor a
    sampler whose accounting is known.

    >>> resolve("poisson:320")
    PoissonSampler(largest=320)
    """
    if isinstance(spec, str):
        return _by_name(spec)
    # A class has the methods of its instances, so it would pass for one.
    if isinstance(spec, type) or not isinstance(spec, Sampler):
        raise TypeError(
            f"sampling must be a name ({', '.join(names())}) or a Sampler instance, got"
            f" {described(spec)}; a sampler of your own must be passed as"
            " quietgrad.sampling.OwnSampler(sampler, accounted_as=...), since the library cannot"
            " know how to account for it"
        )
    return spec


def _by_name(spec: str) -> Sampler:
    name, colon, option = spec.partition(":")
    if name not in _REGISTRY:
        raise unknown_name("sampling", name, names(), ", and 'poisson:320' for a largest batch")
    if not colon:
        return _REGISTRY[name]()
    if name != "poisson":
        raise ValueError(f"sampler {spec!r} is not valid: {name!r} has no options")
    if not (option.isascii() and option.isdecimal()):
        raise ValueError(
            f"sampler {spec!r} is not valid: expected the largest batch after the colon, for"
            " example 'poisson:320'"
        )
    return PoissonSampler(largest=int(option))
