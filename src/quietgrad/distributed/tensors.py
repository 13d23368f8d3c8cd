"""Ranks that each hold a part of the layers' weights and run the same samples (tensor parallel).

Norms of what is spread add up over these ranks; what is whole on all of them counts once. Beside
each other there may be several such sets of ranks, each with its own samples.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quietgrad.distributed.facts import digest_tensors
from quietgrad.distributed.sharding import is_distributed_tensor, local_of
from quietgrad.distributed.world import AddNoise, Replicas, explained, find_grid
from quietgrad.errors import DistributedTrainingError, RankError, UnsupportedOperationError

if TYPE_CHECKING:
    from quietgrad.reduction import ClippedReducer

_APART = 1e-3  # of a sum's norm, by which two ranks' sums of the same may differ


class TensorParts(Replicas):
    """Ranks with parts of weights, by ``parallelize_module``.

    Args:
        model: some of whose parameters are spread over one dimension of a mesh.
        is_seeded: as for replicas; here each part has its own leader.
    """

    has_collectives = True

    def __init__(self, model: nn.Module, *, is_seeded: bool = False) -> None:
        super().__init__(is_seeded=is_seeded)
        spread: dict[str, Any] = {
            name: p for name, p in model.named_parameters() if is_distributed_tensor(p)
        }
        mesh = next(iter(spread.values())).device_mesh
        for name, parameter in spread.items():
            if mesh.ndim > 1 or parameter.device_mesh != mesh:
                raise DistributedTrainingError(
                    f"parameter '{name}' is on a mesh of several dimensions, or on another one "
                    "than the rest",
                    "Call parallelize_module with one dimension of a mesh, as mesh['tp'].",
                    "it would not be known which ranks have the other parts",
                )
        self._cut = {name for name, p in spread.items() if not p.placements[0].is_replicate()}
        own = mesh.mesh.flatten().tolist()
        grid = find_grid(self.gather(own), self.size)
        self.data_rank, self.data_size = grid.index(tuple(own)), len(grid)
        self._group, self._place = mesh.get_group(), mesh.get_local_rank()
        self._device = torch.device(mesh.device_type)
        self._owners, self._copies = None, len(grid)
        for members in zip(*grid, strict=True) if len(grid) > 1 else ():
            group = dist.new_group(list(members))
            if self.rank in members:
                self._owners = group
        self.joint = self
        self._key, self._asked = self.share(secrets.token_hex(16)), 0

    def own_seed(self, seed: int | None) -> int | None:
        """Another one for each part: its entries are others."""
        if seed is None:
            return None
        return int.from_bytes(hashlib.sha256(f"{seed} part {self._place}".encode()).digest()[:7])

    # -- passes of the model -------------------------------------------------------------------

    def common_choices(self) -> random.Random:
        """Of this set of ranks, new ones each time."""
        self._asked += 1
        return random.Random(f"{self._key}/{self.data_rank}/{self._asked}")

    @contextmanager
    def together(self, reducer: ClippedReducer) -> Iterator[None]:
        """A micro-batch: what is raised in here stops the others, too."""
        if self._failure is not None:
            raise RankError(f"this rank cannot go on without the others: {self._failure}")
        try:
            with explained(self._find_failures):
                yield
        except BaseException as error:
            self.note_failure(error)
            raise

    # -- sums ----------------------------------------------------------------------------------

    def counts(self, name: str) -> bool:
        """What is whole on all ranks counts on the first."""
        return self._place == 0 or name in self._cut

    def add_squares(self, squares: Tensor) -> Tensor:
        """Over the ranks with the other parts."""
        dist.all_reduce(squares, group=self._group)
        return squares

    def add_up(self, counts: Tensor) -> Tensor:
        """Over ranks with other samples; those with other parts count the same."""
        total = counts.clone()
        if self._owners is not None:
            with explained(self._find_failures):
                dist.all_reduce(total, group=self._owners)
        return total

    def add_parts(self, numbers: Sequence[float]) -> list[float]:
        """Likewise; the last one is the number of samples, which is that of each of them."""
        *squares, samples = numbers
        total = torch.tensor(squares, dtype=torch.float64, device=self._device)
        with explained(self._find_failures):
            dist.all_reduce(total, group=self._group)
        return [*total.tolist(), samples]

    def refuse_apart(self, sums: Mapping[str, Tensor]) -> None:
        """What is whole on all ranks has the same gradient on all, or it was used on a part."""
        apart: list[str] = []
        for name in sorted(name for name in sums if name not in self._cut):
            first = sums[name].detach().clone().contiguous()
            with explained(self._find_failures):
                dist.broadcast(first, group=self._group, group_src=0)
            if not float((first - sums[name]).norm()) <= _APART * float(first.norm()):
                apart.append(name)
        if apart:  # when all ranks have gone through all of them
            raise UnsupportedOperationError(
                f"parameter '{apart[0]}' is whole on every rank, and its clipped sums differ from "
                "rank to rank: it is used on activations of which each rank has a part, so that "
                "its gradient has parts, too. Use it on whole activations, spread the layer, or "
                "freeze the parameter. Nothing was released."
            )

    def noisy(
        self, totals: Sequence[Tensor], add_noise: AddNoise, trained: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Each rank adds the noise to its part; to what is whole the first one does."""
        noisy = super().noisy(totals, add_noise, trained)
        with explained(self._find_failures):
            for i, parameter in enumerate(trained):
                placed: Any = parameter
                if not is_distributed_tensor(placed) or placed.placements[0].is_replicate():
                    noisy[i] = noisy[i].contiguous()
                    dist.broadcast(noisy[i], group=self._group, group_src=0)
        return noisy

    # -- facts ---------------------------------------------------------------------------------

    def digest_weights(self, model: nn.Module) -> dict[str, object]:
        """By part; what is whole is the same on all ranks."""
        held = model.state_dict()
        cut = {name: local_of(value) for name, value in held.items() if name in self._cut}
        whole = {name: local_of(value) for name, value in held.items() if name not in self._cut}
        return {
            f"part {self._place} of the weights": digest_tensors(cut),
            "the weights that are whole": digest_tensors(whole),
        }
