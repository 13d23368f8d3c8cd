"""Checkpoints of sharded weights: a folder to which every rank writes what it holds.

``engine.pt`` in it is a state without its tensors, and says in which folder beside it they are, as
``torch.distributed.checkpoint`` writes them. It is replaced last, so that a crash leaves the old
state or the new one. Any number of ranks can read it, also a single process with whole weights.
"""

from __future__ import annotations

import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from quietgrad._files import replace_file
from quietgrad.distributed.sharding import is_distributed_tensor, like_shard, local_of, part_of
from quietgrad.distributed.world import World
from quietgrad.engine.checkpoint import read_state
from quietgrad.errors import EngineStateError

_PLAIN, _PARTS, _TENSOR = "engine.pt", "parts", "tensor of another file"
_HELD = ("model", "optimizer")


def save_parts(state: Mapping[str, Any], folder: Path, world: World) -> None:
    """Write a state, all ranks together; what was there before is removed at the end."""
    from torch.distributed.checkpoint.state_dict_saver import save

    def begin() -> str:
        if folder.is_file():
            raise EngineStateError(
                f"{folder} is a file, and a sharded model is saved as a folder, to which all "
                "ranks write: save to another place."
            )
        folder.mkdir(parents=True, exist_ok=True)
        return f"{_PARTS}-{secrets.token_hex(8)}"

    name = world.lead(begin)
    tensors: dict[str, Tensor] = {}
    plain = {key: _take_out(key, value, tensors) for key, value in state.items()}
    with world.agreeing():
        save(tensors, checkpoint_id=folder / name)

    def end() -> None:
        content = plain | {_PARTS: name}
        replace_file(folder / _PLAIN, lambda stream: torch.save(content, stream))
        for old in folder.glob(f"{_PARTS}-*"):
            if old.name != name:
                shutil.rmtree(old, ignore_errors=True)

    world.lead(end)


def read_parts(folder: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """The state in a folder, of which this rank reads what it holds."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    state = read_state(folder / _PLAIN)
    name = state.pop(_PARTS, None)
    if not isinstance(name, str) or Path(name).name != name:
        raise EngineStateError(f"{folder} does not say where its tensors are: restore a copy.")
    try:
        known = FileSystemReader(folder / name).read_metadata().state_dict_metadata
        rooms = {
            key: _make_room(each, parameter)
            for key, each, parameter in _match(known, model, optimizer)
        }
        with warnings.catch_warnings():
            # Each rank reads what it holds, for itself: torch supposes that there are no others.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            load(rooms, checkpoint_id=folder / name, no_dist=True)
    except Exception as error:  # whatever a damaged folder makes of it
        raise EngineStateError(
            f"{folder / name} cannot be read as a part of a checkpoint: restore a copy of it. The "
            "ledger still says what was spent."
        ) from error
    return {key: _put_back(value, rooms) for key, value in state.items()}


def spread(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """A state in which what belongs to a sharded weight is this rank's part of it."""
    named, numbered = _parameters(model, optimizer)
    weights = {name: _cut_like(value, named.get(name)) for name, value in state["model"].items()}
    slots = {
        number: {key: _cut_like(value, numbered.get(number)) for key, value in held.items()}
        for number, held in state["optimizer"]["state"].items()
    }
    return {**state, "model": weights, "optimizer": {**state["optimizer"], "state": slots}}


def _parameters(
    model: nn.Module, optimizer: Optimizer
) -> tuple[dict[str, Tensor], dict[Any, Tensor]]:
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    held = (p for group in optimizer.param_groups for p in group["params"])
    return named, dict(enumerate(held))


def _cut_like(value: Any, parameter: Tensor | None) -> Any:
    is_whole = isinstance(value, Tensor) and not is_distributed_tensor(value)
    if parameter is None or not is_whole or not is_distributed_tensor(parameter):
        return value
    if value.shape != parameter.shape:
        return value
    return like_shard(parameter, part_of(value, parameter).to(local_of(parameter).device))


def _take_out(place: str, value: Any, tensors: dict[str, Tensor]) -> Any:
    """The same without tensors of weights and their optimizer, which are noted by their place."""
    if not place.startswith(_HELD):
        return value
    if isinstance(value, Tensor):
        tensors[place] = value.detach()
        return {_TENSOR: place}
    if isinstance(value, Mapping):
        return {key: _take_out(f"{place}/{key}", each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_take_out(f"{place}/{i}", each, tensors) for i, each in enumerate(value)]
    return value


def _put_back(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: _put_back(each, tensors) for key, each in value.items()}
    return [_put_back(each, tensors) for each in value] if isinstance(value, list) else value


def _match(
    known: Mapping[str, Any], model: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[str, Any, Tensor | None]]:
    """The tensors of a checkpoint, each with the parameter that it belongs to."""
    named, numbered = _parameters(model, optimizer)
    for place, each in known.items():
        kind, _, name = place.partition("/")
        if kind == "model":
            yield place, each, named.get(name)
        else:
            number = name.split("/")[1] if name.startswith("state/") else ""
            yield place, each, numbered.get(int(number)) if number.isdigit() else None


def _make_room(each: Any, parameter: Tensor | None) -> Tensor:
    """To load into: in the types that were saved, on the CPU unless it is a part of a weight."""
    size, dtype = each.size, each.properties.dtype
    if parameter is not None and is_distributed_tensor(parameter) and size == parameter.shape:
        return like_shard(parameter, torch.empty_like(local_of(parameter.detach()), dtype=dtype))
    return torch.empty(size, dtype=dtype, device="cpu")
