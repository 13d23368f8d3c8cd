"""The processes of a Lightning Trainer: they share files and metrics, and no model is wrapped.

What ranks share of a step is the engine's: it adds up over the process group that is begun here.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from quietgrad.errors import IntegrationError
from quietgrad.integrations.common import share_weights

_ParallelStrategy: Any = object  # of whichever package: this is mixed in before it


class Ranks(_ParallelStrategy):  # type: ignore[misc]
    """A strategy for one process, or for several with a whole copy of the module each."""

    framework: Any  # lightning.pytorch or pytorch_lightning

    def __init__(self) -> None:
        super().__init__()
        self.num_nodes = 1
        self._is_beginning = False

    @property
    def root_device(self) -> torch.device:
        """The device of this process."""
        device: torch.device = self.parallel_devices[self.local_rank]
        return device

    @property
    def num_processes(self) -> int:
        """Number of processes on this machine."""
        return len(self.parallel_devices or ())

    @property
    def is_distributed(self) -> bool:
        """Whether Lightning cuts data into parts; the engine does that for what it trains on."""
        return bool(self.world_size > 1 and not self._is_beginning)

    def set_world_ranks(self) -> None:
        """Tell the environment which of all processes this is."""
        environment = self.cluster_environment
        environment.set_global_rank(self.node_rank * self.num_processes + self.local_rank)
        environment.set_world_size(self.num_nodes * self.num_processes)
        utilities = import_module(f"{self.framework.__name__}.utilities.rank_zero")
        utilities.rank_zero_only.rank = self.global_rank

    def _configure_launcher(self) -> None:
        if self.world_size > 1:
            launchers = import_module(f"{self.framework.__name__}.strategies.launchers")
            self._launcher = launchers._SubprocessScriptLauncher(
                self.cluster_environment, self.num_processes, self.num_nodes
            )

    def setup_environment(self) -> None:
        """Join the other processes, if there are any."""
        super().setup_environment()
        if dist.is_initialized() and dist.get_world_size() != self.world_size:
            raise IntegrationError(
                f"torch.distributed has a process group of {dist.get_world_size()} ranks, and the "
                f"Trainer has {self.world_size}: give it devices={dist.get_world_size()}, or end "
                "the group."
            )
        if self.world_size > 1 and not dist.is_initialized():
            os.environ["MASTER_ADDR"] = self.cluster_environment.main_address
            os.environ["MASTER_PORT"] = str(self.cluster_environment.main_port)
            backend = "gloo" if self.root_device.type == "cpu" else "nccl"
            dist.init_process_group(backend, rank=self.global_rank, world_size=self.world_size)

    def _setup_model(self, model: Any) -> Any:
        if self.world_size > 1:
            share_weights(model)
        return model

    def model_to_device(self) -> None:
        """Move the module to the device of this process."""
        self.model.to(self.root_device)

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """Wait for all processes."""
        if dist.is_initialized():
            dist.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """The object of one process, on all."""
        objects = [obj]
        if dist.is_initialized():
            dist.broadcast_object_list(objects, src)
        return objects[0]

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """A metric of all processes; what is no tensor stays as it is."""
        if not isinstance(tensor, Tensor) or not dist.is_initialized():
            return tensor
        name = str(getattr(reduce_op, "name", reduce_op)).upper()
        is_mean = name in ("MEAN", "AVG", "NONE")
        total = tensor.detach().clone()
        dist.all_reduce(total, getattr(dist.ReduceOp, "SUM" if is_mean else name), group)
        return total / dist.get_world_size(group) if is_mean else total
