"""What adapters share: verdicts on the arguments of a framework, and the weights to begin with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import nn

from quietgrad.engine.arguments import Protected, check_protected
from quietgrad.errors import IntegrationError

Verdict = Literal["works", "in part", "harmless", "refused"]


def _is_never_used(owner: Any) -> str | None:
    return None


@dataclass(frozen=True)
class Argument:
    """One argument of a framework's constructor, or one of its methods.

    Attributes:
        verdict: whether it works, works in some uses and is refused in others, has nothing to do
            with training, or is refused.
        note: what it does here; of what is refused, why, and what to do.
        used: of the object that was made with it, the use that is refused, as it was written; None
            if there is no such use.
    """

    verdict: Verdict
    note: str = ""
    used: Callable[[Any], str | None] = _is_never_used


def attribute(name: str, *harmless: Any) -> Callable[[Any], str | None]:
    """The use of an argument that is kept as an attribute, unless its value is one of these."""

    def used(owner: Any) -> str | None:
        value = getattr(owner, name, None)
        is_harmless = any(value is each or value == each for each in (None, *harmless))
        return None if is_harmless else f"{name}={value!r}"

    return used


def steps_per_pass(dataset: Any, batch_size: int, options: Mapping[str, Any]) -> int:
    """Steps of a pass over the data by an engine with these options."""
    protected = drawn_from(dataset, options)
    return protected.draws(options.get("sampling", "poisson"), batch_size).length


def drawn_from(dataset: Any, options: Mapping[str, Any]) -> Protected:
    """What an engine with these options draws: elements of the data set, or units of several."""
    names = ("units", "records_per_unit", "unit", "public_size")
    return check_protected(dataset, *map(options.get, names))


def refuse_arguments(owner: Any, kind: type, known: Mapping[str, Argument]) -> None:
    """Refuse uses that are refused, and arguments that nobody has classified.

    Args:
        owner: what was made with the arguments.
        kind: its class, or the one of the framework that it is derived from.
        known: every argument by name.

    Raises:
        IntegrationError: an argument is used that must not be.
    """
    where = kind.__name__
    for argument in known.values():
        if (shown := argument.used(owner)) is not None:
            raise IntegrationError(f"{where}({shown}): {argument.note}.")
    for name, parameter in inspect.signature(kind).parameters.items():
        is_open = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if name not in known and not is_open and not _has_default(owner, name, parameter.default):
            raise IntegrationError(
                f"{where}({name}=...): this version of {kind.__module__.partition('.')[0]} has an "
                "argument that quietgrad does not know, and it cannot be seen that it was left at "
                "its default. Leave it out, or install a version that quietgrad was tested with "
                "(docs/integrations)."
            )


def _has_default(owner: Any, name: str, default: Any) -> bool:
    """Whether an attribute of this name shows that the argument was left out."""
    value = getattr(owner, name, inspect.Parameter.empty)
    return value is default or (type(value) is type(default) and bool(value == default))


def share_weights(model: nn.Module) -> None:
    """Rank 0's weights on all ranks, as DistributedDataParallel does."""
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)
