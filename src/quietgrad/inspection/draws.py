"""Random draws that are the same for a sample in whatever batch it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

Cut = Callable[[Any], Any]
"""Takes the rows of one sample, of a tensor that has them, and leaves the rest as it is."""
Fill = Callable[[Tensor, tuple[Any, ...], dict[str, Any], Cut, Generator], object]
"""Draws once more, into (a part of) what was drawn, given the arguments of the draw."""

_EXTREME = 0.05


def _again(method: str) -> Fill:
    """For methods that fill a tensor, by the method itself."""

    def fill(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
        options = {name: cut(value) for name, value in kwargs.items() if name != "generator"}
        return getattr(out, method)(*map(cut, args[1:]), **options, generator=generator)

    return fill


def _uniform(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    return out.uniform_(generator=generator)


def _standard_normal(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    return out.normal_(generator=generator)


def _normal(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    given = dict(zip(("mean", "std"), args, strict=False)) | kwargs
    mean, deviation = cut(given.get("mean", 0.0)), cut(given.get("std", 1.0))
    return out.normal_(generator=generator).mul_(deviation).add_(mean)


def _bernoulli(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    given = dict(zip(("input", "p"), args, strict=False)) | kwargs
    return out.bernoulli_(cut(given.get("p", given["input"])), generator=generator)


def _integers(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    bounds = [each for each in args if isinstance(each, int)]
    high = kwargs.get("high", bounds[-1] if bounds else None)
    has_low = len(bounds) > ("high" not in kwargs)
    low = kwargs.get("low", bounds[0] if has_low else 0)
    return out.random_(low, high, generator=generator)


def _categories(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    given = dict(zip(("input", "num_samples", "replacement"), args, strict=False)) | kwargs
    weights = given["input"]
    given["input"] = cut(weights) if weights.ndim > 1 else weights
    return out.copy_(
        torch.multinomial(**given | {"num_samples": out.shape[-1], "generator": generator})
    )


def _permutation(out: Tensor, args: Any, kwargs: Any, cut: Cut, generator: Generator) -> object:
    # One that leaves nothing where it was: what it mixes must show.
    shift = torch.randint(1, max(2, len(out)), (), generator=generator)
    return out.copy_(torch.arange(len(out)).roll(int(shift)))


_FILLING = (
    "uniform_", "normal_", "bernoulli_", "exponential_", "random_", "geometric_", "log_normal_",
    "cauchy_",
)  # fmt: skip
FILLS: dict[Callable[..., Any], Fill] = {
    **{getattr(Tensor, name): _again(name) for name in _FILLING},
    torch.rand: _uniform, torch.rand_like: _uniform,
    torch.randn: _standard_normal, torch.randn_like: _standard_normal,
    torch.normal: _normal,
    torch.bernoulli: _bernoulli, Tensor.bernoulli: _bernoulli,
    torch.randint: _integers, torch.randint_like: _integers,
    torch.multinomial: _categories, Tensor.multinomial: _categories,
    torch.randperm: _permutation,
}  # fmt: skip
"""What is drawn, and how it is drawn again."""


class RandomDraws:
    """Draws again what a model drew: by the sample's place where there is a part for each sample.

    Which dimension that is, two runs tell that differ in the number of samples. Where there is
    none, everybody gets the same. Only the order of draws counts, not how much each takes from the
    generator, and it is read off the generator's state, which checkpointing puts back.

    Attributes:
        places: the samples of the run under way.
        low: whether single uniform numbers come from the low end or from the high one, for a model
            may do one thing or another by them.
    """

    def __init__(self) -> None:
        self.places: list[int] = []
        self.low = True
        self._shapes: dict[int, dict[int, torch.Size]] = {}

    def __call__(self, draw: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Tensor:
        """What ``draw`` gives, drawn again."""
        seed = int(torch.empty((), dtype=torch.int64).random_())
        output: Tensor = draw(*args, **kwargs)
        filled = output.detach()
        dim = None if draw is torch.randperm else self._dimension(filled, seed)
        with torch.no_grad():
            for cut, generator in self._parts(filled, dim, seed):
                FILLS[draw](cut(filled), args, kwargs, cut, generator)
            if dim is None and filled.numel() == 1 and FILLS[draw] is _uniform:
                self._push(filled)
        torch.manual_seed(seed)  # for the next one, whatever this one took
        return output

    def _dimension(self, output: Tensor, seed: int) -> int | None:
        """The dimension that grows with the number of samples."""
        now = len(self.places)
        shapes = self._shapes.setdefault(seed, {})
        shapes.setdefault(now, output.shape)
        for samples, shape in shapes.items():
            if len(shape) == output.ndim:
                sizes = enumerate(zip(shape, output.shape, strict=True))
                grown = [dim for dim, (a, b) in sizes if a != b and a * now == b * samples]
                if grown:
                    return grown[0]
        return None

    def _parts(self, output: Tensor, dim: int | None, seed: int) -> Iterator[tuple[Cut, Generator]]:
        if dim is None:
            yield lambda value: value, torch.Generator().manual_seed(seed)
            return
        size = output.shape[dim]
        each = size // len(self.places)
        for number, place in enumerate(self.places):
            rows = slice(number * each, (number + 1) * each)
            yield _cutter(dim, size, rows), torch.Generator().manual_seed(hash((seed, place)) >> 1)

    def _push(self, number: Tensor) -> None:
        number.mul_(_EXTREME)
        if not self.low:
            number.neg_().add_(1)


def _cutter(dim: int, size: int, rows: slice) -> Cut:
    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim <= dim or value.shape[dim] != size:
            return value
        return value.detach()[(slice(None),) * dim + (rows,)]

    return cut
