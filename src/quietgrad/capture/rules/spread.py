"""Layers whose weights are spread over ranks (tensor parallel), by the rules for what is here.

Each rank multiplies with its part of a weight, and has the part of every sample's gradient that
belongs to it. What the parts of an output have to do with each other is left to torch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quietgrad.capture.call import Call
from quietgrad.capture.rules.embedding import embedding
from quietgrad.capture.rules.linear import bias_factor, linear
from quietgrad.distributed.sharding import is_distributed_tensor


def run_spread(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear layer or an embedding; refused if it is another operation."""
    if call.function is F.linear:
        return _linear(call, *args, **kwargs)
    if call.function is F.embedding:
        return _embedding(call, *args, **kwargs)
    raise _refuse(call, "is used by no linear layer or embedding", args[0], *args[1:])


def _linear(call: Call, input: Tensor, weight: Any, bias: Any = None) -> Any:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, dim = _find_place(call, weight, input, bias)
    here, added = call.localize([weight, bias])
    assert here is not None
    spread: Any = input
    if dim == 0:
        if not spread.placements[0].is_replicate() or (bias is not None and not _is_cut(bias, 0)):
            raise _refuse(call, "has rows on each rank, and its input or bias is cut", weight, bias)
        # This rank's part of the weight sends a part of the gradient to the whole input.
        local = spread.to_local(grad_placements=[Partial()])
        return _in_columns(linear(call, local, here, added), mesh, weight.shape[0])
    if not spread.placements[0].is_shard(spread.ndim - 1) or (bias is not None and _is_cut(bias)):
        raise _refuse(call, "has columns on each rank, and its input has not", weight, bias)
    output = linear(call, spread.to_local(), here)
    parts = DTensor.from_local(output, mesh, [Partial()], run_check=False)
    whole = parts.redistribute(placements=[Replicate()]).to_local()
    if added is not None:
        whole = whole + call.value(added)
        uses = [(added, bias_factor)]
        whole = call.watch(whole, uses, dims=whole.ndim - 1, label="bias")
    return DTensor.from_local(whole, mesh, [Replicate()], run_check=False)


def _embedding(
    call: Call, input: Tensor, weight: Any, padding_idx: int | None = None, *options: Any, **_: Any
) -> Any:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh, dim = _find_place(call, weight, input)
    spread: Any = input
    if not spread.placements[0].is_replicate():
        raise _refuse(call, "looks up ids that are cut", weight)
    (here,) = call.localize([weight])
    assert here is not None
    ids, padding = spread.to_local(), padding_idx
    if dim == 1:
        return _in_columns(embedding(call, ids, here, padding), mesh, weight.shape[1])
    rows = -(-weight.shape[0] // mesh.size())
    first = mesh.get_local_rank() * rows
    is_here = (ids >= first) & (ids < first + len(here))
    padding = None if padding is None else padding % weight.shape[0] - first
    padding = padding if padding is not None and 0 <= padding < len(here) else None
    if not len(here):
        raise _refuse(call, "has no rows on this rank", weight)
    output = embedding(call, torch.where(is_here, ids - first, 0), here, padding)
    output = output * is_here.unsqueeze(-1)
    parts = DTensor.from_local(output, mesh, [Partial()], run_check=False)
    return parts.redistribute(placements=[Replicate()])


def _in_columns(output: Tensor, mesh: Any, width: int) -> Any:
    """Of so many columns those of this rank, which need not be as many as those of others."""
    from torch.distributed.tensor import DTensor, Shard

    shape = torch.Size([*output.shape[:-1], width])
    stride = torch.empty(shape, device="meta").stride()
    place = [Shard(output.ndim - 1)]
    return DTensor.from_local(output, mesh, place, run_check=False, shape=shape, stride=stride)


def _find_place(call: Call, weight: Any, *others: Any) -> tuple[Any, int]:
    """The mesh, and the dimension in which the weight is cut."""
    tensors = [weight, *(each for each in others if each is not None)]
    if not all(map(is_distributed_tensor, tensors)):
        raise _refuse(call, "meets tensors that are not", *tensors)
    mesh = weight.device_mesh
    places = weight.placements
    if mesh.ndim > 1 or any(each.device_mesh != mesh for each in tensors[1:]):
        raise _refuse(call, "is on a mesh of several dimensions, or on several meshes", weight)
    dim = next((dim for dim in (0, 1) if places[0].is_shard(dim)), None)
    if dim is None or type(places[0]).__name__ != "Shard":
        raise _refuse(call, f"is placed as {places}", weight)
    return mesh, dim


def _is_cut(bias: Any, dim: int | None = None) -> bool:
    place = bias.placements[0]
    return bool(place.is_shard(dim) if dim is not None else not place.is_replicate())


def _refuse(call: Call, what: str, *tensors: Any) -> Exception:
    return call.refuse(
        f"a parameter that is spread over ranks {what}",
        "Spread torch.nn.Linear and torch.nn.Embedding by ColwiseParallel and RowwiseParallel, "
        "with their own layouts, and leave all else whole (no SequenceParallel, no loss_parallel)",
        *tensors,
    )
