"""Dropout and other randomness switched off, so that one run can be compared with another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DROPOUTS = (
    F.dropout, F.alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout,
    torch.dropout, torch.dropout_, torch.alpha_dropout, torch.alpha_dropout_,
    torch.feature_dropout, torch.feature_dropout_, torch.feature_alpha_dropout,
)  # fmt: skip
_DROPOUT_PLACE = 4  # of dropout_p among the arguments of scaled_dot_product_attention
# What a draw is replaced by: the middle of its range.
_DRAWS: dict[Callable[..., Any], float] = {
    torch.rand: 0.5, torch.rand_like: 0.5, Tensor.uniform_: 0.5,
    torch.randn: 0.0, torch.randn_like: 0.0, Tensor.normal_: 0.0, torch.normal: 0.0,
}  # fmt: skip


class Predictable(TorchFunctionMode):
    """Replaces random operations by ones that give every sample the same, in any batch.

    Attributes:
        randomness: the names of the operations it replaced.
        saw_autocast: whether something ran in a lower precision.
    """

    def __init__(self) -> None:
        super().__init__()
        self.randomness: set[str] = set()
        self.saw_autocast = False

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
        output = func(*args, **kwargs)
        if func in _DRAWS:
            self.randomness.add(func.__name__)
            output.fill_(_DRAWS[func])
        return output

    def _without_dropout(self, func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
        rest = dict(zip(("p", "training"), args[1:], strict=False)) | kwargs
        if rest.get("p", 0.5) and rest.get("training", True):
            self.randomness.add(func.__name__)
        return args[0] if args else kwargs["input"]

    def _without_attention_dropout(self, args: Any, kwargs: dict[str, Any]) -> Any:
        if len(args) > _DROPOUT_PLACE:
            rate = args[_DROPOUT_PLACE]
            args = (*args[:_DROPOUT_PLACE], 0.0, *args[_DROPOUT_PLACE + 1 :])
        else:
            rate, kwargs = kwargs.get("dropout_p", 0.0), kwargs | {"dropout_p": 0.0}
        if rate:
            self.randomness.add("dropout in attention")
        return args, kwargs


def switch_off_layer_dropout(model: nn.Module) -> set[str]:
    """Recurrent layers and attention keep their dropout in an attribute. Returns whose it was."""
    found = set()
    for module in model.modules():
        if isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout:
            module.dropout = 0.0
            found.add(f"dropout in {type(module).__name__}")
    return found
