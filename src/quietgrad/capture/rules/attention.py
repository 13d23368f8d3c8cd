"""nn.MultiheadAttention, as the projections and the attention it is made of."""

from __future__ import annotations

from functools import cache
from inspect import signature
from types import FunctionType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call
from quietgrad.capture.operations import TorchFunction, rule


@rule(F.multi_head_attention_forward)
def multi_head_attention(
    call: Call, query: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """Torch's own steps, each of them captured."""
    decomposed = _decomposed(F.multi_head_attention_forward)
    given = signature(decomposed).bind(query, *args, **kwargs).arguments
    has_static = given.get("static_k") is not None or given.get("static_v") is not None
    if has_static or query.ndim != 3:
        raise call.refuse(
            "static keys and unbatched inputs are not supported",
            "Pass batched query, key and value",
            given["in_proj_weight"],
            given["out_proj_weight"],
        )
    with call.recapture():
        output: tuple[Tensor, Tensor | None] = decomposed(query, *args, **kwargs)
    return output


@cache
def _decomposed(function: TorchFunction) -> TorchFunction:
    """A copy of a function of torch that does not offer itself to the capture mode as a whole.

    So all outputs are those of torch, whatever the options, and dropout draws the same numbers.
    """
    assert isinstance(function, FunctionType)
    names: dict[str, Any] = dict(function.__globals__)
    offers = [name for name in function.__code__.co_names if name.startswith("has_torch_function")]
    names |= dict.fromkeys(offers, lambda *_: False)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
