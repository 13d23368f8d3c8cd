"""How ranks share the work, which follows from the process group and from the model."""

from __future__ import annotations

import os

import torch.distributed as dist
from torch import nn

from quietgrad.distributed.sharding import has_parts, is_distributed_tensor, is_sharded
from quietgrad.distributed.shards import Shards
from quietgrad.distributed.tensors import ShardedParts, TensorParts
from quietgrad.distributed.world import Replicas, World
from quietgrad.errors import DistributedTrainingError


def find_world(model: nn.Module, *, is_seeded: bool = False) -> World:
    """The process group of this process, or this process alone.

    How ranks share the work follows from the model: where its weights are sharded or spread, each
    rank holds a part.
    """
    if dist.is_available() and dist.is_initialized():
        if dist.get_world_size() == 1:
            return World()
        if is_sharded(model):
            kind = ShardedParts if has_parts(model) else Shards
            return kind(model, is_seeded=is_seeded)
        if any(map(is_distributed_tensor, model.parameters())):
            return TensorParts(model, is_seeded=is_seeded)
        return Replicas(is_seeded=is_seeded)
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 and "RANK" in os.environ:
        raise DistributedTrainingError(
            f"this is one of {os.environ['WORLD_SIZE']} processes (WORLD_SIZE), and there is no "
            "process group",
            "Call torch.distributed.init_process_group() before the engine is made, or start one "
            "process.",
        )
    return World()
