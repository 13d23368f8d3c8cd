"""Random draws that are the same for a sample in whatever batch it comes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from quietgrad.capture.draws import RandomState, preserve_randomness

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
                filled.mul_(_EXTREME)
                if not self.low:
                    filled.neg_().add_(1)
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


def _cutter(dim: int, size: int, rows: slice) -> Cut:
    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim <= dim or value.shape[dim] != size:
            return value
        return value.detach()[(slice(None),) * dim + (rows,)]

    return cut


_DROPOUTS = (
    F.dropout, F.alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout,
    torch.dropout, torch.dropout_, torch.alpha_dropout, torch.alpha_dropout_,
    torch.feature_dropout, torch.feature_dropout_, torch.feature_alpha_dropout,
)  # fmt: skip
_DROPOUT_PLACE = 4  # of dropout_p among the arguments of scaled_dot_product_attention
_UNALIGNED = (
    torch.poisson, torch.binomial, torch._standard_gamma, torch._sample_dirichlet,
    F.rrelu, torch.rrelu, F.fractional_max_pool2d, F.fractional_max_pool3d,
)  # fmt: skip
KEYS = (0, 1)
"""For one the low end, for the other the high end of single uniform draws."""


class Predictable(TorchFunctionMode):
    """Replaces random operations by ones that give a sample the same, in any batch.

    Attributes:
        randomness: the names of the operations it replaced in runs of the model by itself.
        unaligned: those of them that are the same only in batches of the same size.
        noting: whether these names are noted now.
        saw_autocast: whether something ran in a lower precision.
        saw_draws: whether anything was drawn, besides dropout.
        key: what is drawn depends on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.randomness: set[str] = set()
        self.unaligned: set[str] = set()
        self.noting = True
        self.saw_autocast = self.saw_draws = False
        self.key = KEYS[0]
        self.draws = RandomDraws()

    @contextmanager
    def running(self, places: Sequence[int], *, noting: bool = True) -> Iterator[None]:
        """A run of these samples; generators are left as they were.

        ``noting`` says whether it is the model alone that draws, and not the library.
        """
        self.noting = noting
        self.draws.places, self.draws.low = list(places), self.key == KEYS[0]
        with preserve_randomness():
            torch.manual_seed(self.key)
            np.random.seed(self.key)  # noqa: NPY002  models draw from it
            random.seed(self.key)
            before = RandomState()
            with self:
                yield
            moved = before.find_moved()
        for name in sorted(moved - {"torch"}):
            self._note(name, aligned=False)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        self.saw_autocast |= torch.is_autocast_enabled("cpu")
        if func in _DROPOUTS:
            return self._without_dropout(func, args, kwargs)
        if func is F.scaled_dot_product_attention:
            args, kwargs = self._without_attention_dropout(args, kwargs)
        if func is F.gumbel_softmax:
            self._note(func.__name__)
            return self._gumbel_softmax(*args, **kwargs)
        if func not in FILLS:
            if func in _UNALIGNED:
                self._note(func.__name__, aligned=False)
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            self._note(f"{func.__name__} with a generator of its own", aligned=False)
            return func(*args, **kwargs)
        self._note(func.__name__)
        return self.draws(func, args, kwargs)

    def _note(self, name: str, *, aligned: bool = True, is_dropout: bool = False) -> None:
        if self.noting:
            self.saw_draws |= not is_dropout
            self.randomness.add(name)
            if not aligned:
                self.unaligned.add(name)

    def _gumbel_softmax(
        self, logits: Tensor, tau: float = 1.0, hard: bool = False, eps: float = 0.0, dim: int = -1
    ) -> Tensor:
        """Written out: torch shows it to a mode as a whole, not what it draws."""
        waits = self.draws(Tensor.exponential_, (torch.empty_like(logits),), {})
        soft = ((logits - waits.log()) / tau).softmax(dim)
        if not hard:
            return soft
        chosen = torch.zeros_like(soft).scatter_(dim, soft.argmax(dim, keepdim=True), 1.0)
        return chosen - soft.detach() + soft

    def _without_dropout(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        rest = dict(zip(("p", "training"), args[1:], strict=False)) | kwargs
        if rest.get("p", 0.5) and rest.get("training", True):
            self._note(func.__name__, is_dropout=True)
        return args[0] if args else kwargs["input"]

    def _without_attention_dropout(self, args: Any, kwargs: dict[str, Any]) -> Any:
        if len(args) > _DROPOUT_PLACE:
            rate = args[_DROPOUT_PLACE]
            args = (*args[:_DROPOUT_PLACE], 0.0, *args[_DROPOUT_PLACE + 1 :])
        else:
            rate, kwargs = kwargs.get("dropout_p", 0.0), kwargs | {"dropout_p": 0.0}
        if rate:
            self._note("dropout in attention", is_dropout=True)
        return args, kwargs


def switch_off_layer_dropout(model: nn.Module) -> set[str]:
    """The dropout that layers keep in an attribute. Returns whose it was.

    That of dropout layers, too: the mode does not see what checkpointing computes again.
    """
    found = set()
    for module in model.modules():
        if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout:
            module.dropout = 0.0
            found.add(f"dropout in {type(module).__name__}")
        elif isinstance(module, _DropoutNd) and module.p and module.training:
            module.p = 0.0
            found.add("dropout")
    return found
