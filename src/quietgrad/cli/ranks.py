"""A command that a launcher such as torchrun started several times: rank 0 owns the run.

The other ranks compute, and keep their run in a folder that is thrown away.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn

from quietgrad.cli.request import Request
from quietgrad.distributed.world import Replicas, World
from quietgrad.errors import DistributedTrainingError
from quietgrad.grouping.blocks import block_paths
from quietgrad.runs.folder import RunFolder


@contextmanager
def joined_ranks() -> Iterator[World]:
    """The ranks that were started together, in a process group; or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1") or 1)
    if size == 1 or "RANK" not in os.environ:
        yield World()
        return
    dist.init_process_group()
    try:
        yield Replicas()
    finally:
        dist.destroy_process_group()


def shard_by_block(model: nn.Module, recipe: str, world: World) -> None:
    """Spread a model over all ranks: each of its blocks by itself, and what is outside of them.

    Raises:
        DistributedTrainingError: there is nothing to spread it over, or it has no blocks.
    """
    if world.size == 1:
        raise DistributedTrainingError(
            "--sharded is given to one process",
            "Start several: torchrun --nproc-per-node=2 -m quietgrad train RECIPE --sharded.",
            "weights are spread over ranks",
        )
    blocks = block_paths(model)
    if not blocks:
        raise DistributedTrainingError(
            f"--sharded is given, and the model of recipe {recipe!r} ({type(model).__name__}) has "
            "no repeated blocks",
            "Leave it out: ranks train with whole copies then.",
            "all weights would be gathered at once, and a rank would hold as much as without",
        )
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for path in blocks:
        fully_shard(model.get_submodule(path))
    fully_shard(model)
    if hasattr(model, "generate"):
        register_fsdp_forward_method(model, "generate")


def device_of_rank(device: str) -> str:
    """Of several accelerators each rank of a machine takes one."""
    own = os.environ.get("LOCAL_RANK")
    if device != "cuda" or own is None:
        return device
    torch.cuda.set_device(int(own))
    return f"cuda:{own}"


@contextmanager
def prepared_together(
    world: World, prepare: Callable[..., Request], *, out: Path | None, resume: bool
) -> Iterator[Request]:
    """Rank 0's request; on other ranks the same one, with a folder that is thrown away.

    Args:
        world: the ranks.
        prepare: makes a request of the folder and whether to resume.
        out: as asked for.
        resume: likewise.
    """
    own: Request | None = None

    def begin() -> tuple[str, int, bool]:
        nonlocal own
        own = prepare(out=out, resume=resume)
        return str(own.folder.path.absolute()), own.initial_seed, own.config is None

    place, initial_seed, is_resumed = world.lead(begin)
    if own is not None:
        yield own
        return
    with TemporaryDirectory() as folder:
        # A run is resumed from its own folder, which all ranks must be able to read.
        kept = Path(place) if is_resumed else Path(folder) / "run"
        found = prepare(out=kept, resume=is_resumed)
        own_folder = RunFolder(folder)
        if is_resumed:
            own_folder.begin(found.folder.config)
        yield replace(found, initial_seed=initial_seed, folder=own_folder, notes=())
