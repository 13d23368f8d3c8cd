"""Dropout switched off, and other randomness made the same in every run, for comparisons."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from quietgrad.capture.model_state import same_randomness
from quietgrad.inspection.draws import FILLS, RandomDraws

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
        """A run of these samples, in here; generators are left as they were.

        Args:
            places: of the samples.
            noting: whether it is the model alone that draws, and not the library.
        """
        self.noting = noting
        self.draws.places, self.draws.low = list(places), self.key == KEYS[0]
        with same_randomness():
            torch.manual_seed(self.key)
            np.random.seed(self.key)  # noqa: NPY002  models draw from it
            random.seed(self.key)
            before = pickle.dumps(np.random.get_state()), random.getstate()  # noqa: NPY002
            with self:
                yield
            after = pickle.dumps(np.random.get_state()), random.getstate()  # noqa: NPY002
        for name, one, other in zip(("numpy.random", "random"), before, after, strict=True):
            if one != other:
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
            self._note(func.__name__, aligned=True)
            return self._gumbel_softmax(*args, **kwargs)
        if func not in FILLS:
            if func in _UNALIGNED:
                self._note(func.__name__, aligned=False)
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            self._note(f"{func.__name__} with a generator of its own", aligned=False)
            return func(*args, **kwargs)
        self._note(func.__name__, aligned=True)
        return self.draws(func, args, kwargs)

    def _note(self, name: str, *, aligned: bool) -> None:
        if self.noting:
            self.saw_draws = True
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
            self._note_dropout(func.__name__)
        return args[0] if args else kwargs["input"]

    def _without_attention_dropout(self, args: Any, kwargs: dict[str, Any]) -> Any:
        if len(args) > _DROPOUT_PLACE:
            rate = args[_DROPOUT_PLACE]
            args = (*args[:_DROPOUT_PLACE], 0.0, *args[_DROPOUT_PLACE + 1 :])
        else:
            rate, kwargs = kwargs.get("dropout_p", 0.0), kwargs | {"dropout_p": 0.0}
        if rate:
            self._note_dropout("dropout in attention")
        return args, kwargs

    def _note_dropout(self, name: str) -> None:
        if self.noting:
            self.randomness.add(name)


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
