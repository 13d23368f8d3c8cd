"""Weights that ``fully_shard`` (FSDP2) has spread over ranks: where they are, and in which form.

A sharded weight is one of two parameters at any time: its shard, which the optimizer holds, or the
whole one, which is gathered when a module runs and freed afterwards. Both go by one name, and
whether a model is at rest or not is no change of its weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from quietgrad.errors import DistributedTrainingError

# Asked for every weight several times in a step. A parameter made of a DTensor is a DTensor.
_PLAIN = frozenset({Tensor, nn.Parameter})


def is_distributed_tensor(tensor: object) -> bool:
    """Whether it is a DTensor; asked without importing them, which takes seconds."""
    if type(tensor) in _PLAIN:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def are_local(tensors: Sequence[Tensor]) -> bool:
    """Whether none of them is spread over ranks."""
    return _PLAIN.issuperset(map(type, tensors)) or not any(map(is_distributed_tensor, tensors))


def local_of(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, in the same memory."""
    if type(tensor) in _PLAIN or not is_distributed_tensor(tensor):
        return tensor
    local: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return local


def exchange_local(tensor: Tensor, values: Tensor) -> None:
    """Put other values in the place of what this rank holds; what was there is left as it is."""
    if is_distributed_tensor(tensor):
        tensor._local_tensor = values  # type: ignore[attr-defined]
    else:
        tensor.data = values


def like_shard(parameter: Tensor, local: Tensor) -> Tensor:
    """This rank's part of a tensor that is spread like a parameter."""
    if not is_distributed_tensor(parameter):
        return local
    from torch.distributed.tensor import DTensor

    spread: Any = parameter
    return DTensor.from_local(
        local,
        spread.device_mesh,
        spread.placements,
        run_check=False,
        shape=spread.shape,
        stride=spread.stride(),
    )


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether it was given to ``fully_shard`` by itself."""
    place = sys.modules.get("torch.distributed.fsdp")
    return place is not None and isinstance(module, place.FSDPModule)


def is_sharded(model: nn.Module) -> bool:
    """Whether some of its modules were given to ``fully_shard``."""
    return any(map(is_fully_sharded, model.modules()))


def has_parts(model: nn.Module) -> bool:
    """Whether some of its weights had been spread over ranks before they were sharded."""
    return any(
        each._unsharded_dtensor_spec is not None
        for group in _list_groups(filter(is_fully_sharded, model.modules()))
        for each in group.fsdp_params
    )


def _list_groups(modules: Iterable[Any]) -> Iterator[Any]:
    """What torch keeps about the weights that are gathered together."""
    for module in modules:
        state = module._get_fsdp_state()
        several = getattr(state, "_fsdp_param_groups", None)
        yield from several if several is not None else filter(None, [state._fsdp_param_group])


class ShardedWeight(NamedTuple):
    """A weight in its two forms.

    Attributes:
        shard: as the optimizer holds it.
        dim: the dimension along which it is cut.
        shape: of what is gathered: the whole, or this rank's part of a layer's weight.
        part: the mesh of the ranks that have the other parts, and how they are placed; None if all
            of it is gathered.
    """

    shard: Any
    dim: int
    shape: torch.Size
    part: tuple[Any, Any] | None


class ShardedModel:
    """The fully sharded modules of a model, and their weights in both forms.

    Args:
        model: every parameter of it must be sharded, over one mesh.

    Attributes:
        weights: by name.
        mesh: of the ranks that share the weights.
        shard_dim: the dimension of the mesh along which weights are cut.
        copy_dim: the one along which shards are copied (HSDP); None without one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules: list[Any] = [*filter(is_fully_sharded, model.modules())]
        self.rest()
        known = {id(p.sharded_param): p for group in self.groups for p in group.fsdp_params}
        self._whole: dict[int, Tensor] = {}
        self.weights: dict[str, ShardedWeight] = {}
        meshes = []
        for name, parameter in model.named_parameters():
            held = known.get(id(parameter))
            if held is None:
                raise _unfit(
                    f"parameter '{name}' is whole, and others are sharded",
                    "Call fully_shard on the outermost module, too, without ignored_params",
                )
            spread = held._unsharded_dtensor_spec
            part = None if spread is None else (spread.mesh, spread.placements)
            self.weights[name] = ShardedWeight(
                parameter, held.fsdp_placement.dim, held._orig_size, part
            )
            meshes.append(held.mesh_info)
        first = meshes[0]
        self.mesh, self.copy_dim = first.mesh, first.replicate_mesh_dim
        for name, mesh in zip(self.weights, meshes, strict=True):
            if mesh.mesh != self.mesh:
                raise _unfit(f"parameter '{name}' is on another mesh than others", "Use one mesh")
            if mesh.shard_mesh_dim is None or mesh.is_spmd_mesh:
                raise _unfit(
                    f"parameter '{name}' is placed as {self.weights[name].shard.placements}",
                    "Shard over one dimension of a mesh, or give fully_shard a mesh of two "
                    "(replicate, shard)",
                )
        self.shard_dim = first.shard_mesh_dim
        self._shards = {id(weight.shard) for weight in self.weights.values()}

    @property
    def groups(self) -> Iterator[Any]:
        """What torch keeps about the weights that are gathered together."""
        return _list_groups(self._modules)

    def at_rest(self, parameter: Tensor) -> Tensor:
        """The shard of a weight that is gathered just now; any other tensor as it is."""
        known = self._whole.get(id(parameter))
        if known is None and id(parameter) not in self._shards:
            self._whole = {
                id(each._unsharded_param): each.sharded_param
                for group in self.groups
                for each in group.fsdp_params
                if hasattr(each, "_unsharded_param")
            }
            known = self._whole.get(id(parameter))
        return parameter if known is None else known

    def rest(self) -> None:
        """Free what is gathered, and forget passes that did not come to their end."""
        for module in self._modules:
            module.reshard()

    def list_groups(self) -> list[list[str]]:
        """The names of the weights that are gathered together, by group."""
        names = {id(weight.shard): name for name, weight in self.weights.items()}
        return [[names[id(p.sharded_param)] for p in g.fsdp_params] for g in self.groups]

    @contextmanager
    def watched(self, on_passed: Callable[[int], None]) -> Iterator[None]:
        """Whenever gradients have passed a group of weights, its number is told."""

        def after(end: Callable[..., None], number: int, *unused: Any) -> None:
            end(*unused)
            on_passed(number)

        groups = list(self.groups)
        for number, group in enumerate(groups):
            group.post_backward = partial(after, group.post_backward, number)
        try:
            yield
        finally:
            for group in groups:
                del group.post_backward

    def forget_passes(self) -> None:
        """What torch noted of passes that were cut short, or that other ranks did not run."""
        for module in self._modules:
            state = module._get_fsdp_state()
            state._comm_ctx.post_forward_order.clear()
            state._training_state = type(state._training_state).IDLE
            state._state_ctx.iter_forward_root = None
            state._state_ctx.post_backward_final_callback_queued = False
            getattr(state, "_modules_to_run_forward", set()).clear()
        for group in self.groups:
            group._post_forward_indices.clear()
            group._training_state = type(group._training_state).IDLE


def _unfit(what: str, advice: str) -> DistributedTrainingError:
    return DistributedTrainingError(what, f"{advice} (docs/distributed.md).")


def cut(whole: Tensor, dim: int, size: int, rank: int) -> Tensor:
    """The part of a tensor that a rank of so many holds, as torch cuts it."""
    parts = whole.chunk(size, dim) if whole.shape[dim] else (whole,)
    if rank < len(parts):
        return parts[rank]
    return whole.narrow(dim, 0, 0)


def part_of(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a tensor that is to be spread like a parameter."""
    spread: Any = parameter
    mesh, part = spread.device_mesh, whole
    # The last dimension of a mesh first: parts of layers were cut before they were sharded.
    for each in reversed(range(mesh.ndim)):
        dim = getattr(spread.placements[each], "dim", None)
        if dim is not None:
            part = cut(part, dim, mesh.size(each), mesh.get_local_rank(each))
    return part.contiguous()


def whole_of(tensor: Tensor) -> Tensor:
    """All of it, gathered from all ranks, which must call this together."""
    spread: Any = tensor
    whole: Tensor = spread.full_tensor() if is_distributed_tensor(tensor) else tensor
    return whole


def in_equal_parts(whole: Tensor, dim: int, size: int) -> Tensor:
    """The parts of all ranks, a row for each, as long as the longest."""
    first = whole.movedim(dim, 0)
    rows = -(-first.shape[0] // size)
    missing = rows * size - first.shape[0]
    if missing:
        first = torch.cat([first, first.new_zeros(missing, *first.shape[1:])])
    return first.reshape(size, -1)
