"""What adapters share: verdicts on the arguments of a framework, and the weights to begin with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch.distributed as dist
from torch import nn
from torch.utils.data import Subset

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


def shares_samples(one: Any, other: Any) -> bool:
    """Whether two data sets have samples in common, as far as can be told without reading them.

    Found are the same object, subsets of one data set, selections of one table of ``datasets``, and
    lists with entries in common. Copies are not.
    """
    if one is None or other is None:
        return False
    (base, rows), (other_base, other_rows) = _source_of(one), _source_of(other)
    if base is other_base or _fingerprint(base) == _fingerprint(other_base) is not None:
        is_whole = rows is None or other_rows is None
        return is_whole or bool(np.intersect1d(rows, other_rows).size)  # type: ignore[arg-type]
    if isinstance(base, (list, tuple)) and isinstance(other_base, (list, tuple)):
        held = {id(each) for each in base if not isinstance(each, _SHARED)}
        return any(id(each) in held for each in other_base)
    places, other_places = _places_in_memory(base, rows), _places_in_memory(other_base, other_rows)
    return any(
        np.intersect1d(places[buffer], other_places[buffer]).size
        for buffer in places.keys() & other_places.keys()
    )


Rows = np.ndarray[Any, Any]
_SHARED = (bool, int, float, str, bytes, type(None))  # equal ones may be one object


def _source_of(dataset: Any) -> tuple[Any, Rows | None]:
    """What a data set is a subset of, and the numbers of its elements there; None for all."""
    rows = None
    while isinstance(dataset, Subset):
        chosen = np.asarray(dataset.indices)
        rows = chosen if rows is None else chosen[rows]
        dataset = dataset.dataset
    return dataset, rows


def _fingerprint(dataset: Any) -> Any:
    return getattr(dataset, "_fingerprint", None)


def _places_in_memory(dataset: Any, rows: Rows | None) -> dict[int, Rows]:
    """Of a ``datasets.Dataset``: by the address of a column's memory, the places that it has."""
    table: Any = getattr(dataset, "_data", None)
    picked = getattr(dataset, "_indices", None)
    found: dict[int, Rows] = {}
    if not hasattr(table, "columns"):
        return found
    chosen = None if picked is None else np.asarray(picked.column(0))
    if rows is not None:
        chosen = rows if chosen is None else chosen[rows]
    for column in table.columns:
        begin = 0
        for chunk in column.chunks:
            address = next((part.address for part in chunk.buffers()[1:] if part is not None), None)
            places = np.arange(begin, begin + len(chunk))
            if chosen is not None:
                places = np.intersect1d(places, chosen)
            if address is not None:
                found[address] = places - begin + chunk.offset
            begin += len(chunk)
    return found
