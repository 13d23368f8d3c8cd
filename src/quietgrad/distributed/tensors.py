"""Ranks that each hold a part of the layers' weights and run the same samples (tensor parallel).

Norms of what is spread add up over these ranks; what is whole on all of them counts once. Beside
each other there may be several such rows of ranks, each with its own samples; all of them hold the
same parts, or each a shard of them (FSDP2).
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quietgrad.distributed.facts import digest_tensors
from quietgrad.distributed.sharding import is_distributed_tensor, local_of
from quietgrad.distributed.shards import Shards
from quietgrad.distributed.world import AddNoise, Replicas, explained, find_grid
from quietgrad.errors import DistributedTrainingError, RankError, UnsupportedOperationError

if TYPE_CHECKING:
    from quietgrad.reduction import ClippedReducer

_APART = 1e-3  # of a sum's norm, or of losses, by which two ranks may differ in the same
_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Row(Replicas):
    """Ranks of a row have the parts of the same layers; those of a column the same part."""

    _column: Any = None  # of ranks with other samples; None for this rank alone
    dtype = torch.float32
    _shard_name = ""

    def _join_row(self, spread: Mapping[str, tuple[Any, Sequence[Any]]]) -> list[tuple[int, ...]]:
        """Find the ranks with the other parts.

        Args:
            spread: the mesh and the placements of weights that are spread over a row, by name.

        Returns:
            All rows.
        """
        mesh = next(iter(spread.values()))[0]
        for name, (own, _) in spread.items():
            if own.ndim > 1 or own != mesh:
                raise DistributedTrainingError(
                    f"parameter '{name}' is on a mesh of several dimensions, or on another one "
                    "than the rest",
                    "Call parallelize_module with one dimension of a mesh, as mesh['tp'], before "
                    "fully_shard.",
                    "it would not be known which ranks have the other parts",
                )
        self._cut = {name for name, (_, places) in spread.items() if not places[0].is_replicate()}
        row = mesh.mesh.flatten().tolist()
        grid = find_grid(self.gather(row), self.size)
        self.data_rank, self.data_size = grid.index(tuple(row)), len(grid)
        self._place, self.device = mesh.get_local_rank(), torch.device(mesh.device_type)
        # Not the group in which layers exchange activations: if ranks run different passes, norms
        # meet norms all the same.
        for members in grid:
            group = dist.new_group(list(members))
            if self.rank in members:
                self._norms = group
        self.joint = self
        self._key, self._asked = self.share(secrets.token_hex(16)), 0
        return grid

    def own_seed(self, seed: int | None) -> int | None:
        """Another one for each part: its entries are others."""
        if seed is None:
            return None
        return int.from_bytes(hashlib.sha256(f"{seed} part {self._place}".encode()).digest()[:7])

    def common_choices(self) -> random.Random:
        """Of this row, new ones each time."""
        self._asked += 1
        return random.Random(f"{self._key}/{self.data_rank}/{self._asked}")

    def vote_on_passes(self, are_so: Sequence[bool]) -> list[bool]:
        """Of a row: its ranks go on side by side, whatever each of them sees of its parts."""
        said = torch.tensor(are_so, dtype=torch.int64, device=self.device)
        with explained(self._find_failures):
            dist.all_reduce(said, dist.ReduceOp.MAX, group=self._norms)
        return [bool(each) for each in said.tolist()]

    def require_same_losses(self, losses: Tensor) -> None:
        """Refuse a row of ranks that do not run the same samples alike."""
        own = losses.detach().double().nan_to_num(0.0, 0.0, 0.0).to(self.device)
        extremes = torch.stack([own, -own])
        with explained(self._find_failures):
            dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._norms)
        largest, smallest = extremes[0], -extremes[1]
        allowed = _APART * (largest.abs().maximum(smallest.abs()) + own.abs().mean())
        if bool((largest - smallest > allowed).any()):
            raise UnsupportedOperationError(
                "ranks that have the parts of the same layers computed different losses for the "
                "same samples: the data set or the loop changes samples at random (draw alike on "
                "these ranks, by torch.manual_seed), dropout falls on whole activations, or a loss "
                "is computed of a part of the outputs (let the last layer give whole ones, "
                "ColwiseParallel(output_layouts=Replicate())). Nothing was accumulated."
            )

    def agree(self, place: int, ready: Sequence[bool], types: Iterable[torch.dtype]) -> list[bool]:
        """By the least of what the ranks of a row say."""
        own = [_TYPES.index(dtype) for dtype in types]
        numbers = [place, -place, min(own, default=len(_TYPES) - 1), *map(int, ready)]
        said = torch.tensor(numbers, device=self.device)
        dist.all_reduce(said, dist.ReduceOp.MIN, group=self._norms)
        first, last, kind, *agreed = said.tolist()
        if first != -last:
            raise RankError(
                "ranks that have the parts of the same layers are at different places of a "
                "backward pass: they did not run the same modules. Nothing was accumulated."
            )
        self.dtype = _TYPES[kind]
        return [bool(each) for each in agreed]

    def counts(self, name: str) -> bool:
        """What is whole on all ranks counts on the first."""
        return self._place == 0 or name in self._cut

    def add_squares(self, squares: Tensor) -> Tensor:
        """Over the ranks with the other parts."""
        dist.all_reduce(squares, group=self._norms)
        return squares

    def add_up(self, counts: Tensor) -> Tensor:
        """Over ranks with other samples; those with other parts count the same."""
        total = counts.clone()
        if self._column is not None:
            with explained(self._find_failures):
                dist.all_reduce(total, group=self._column)
        return total

    def add_parts(self, numbers: Sequence[float]) -> list[float]:
        """Likewise; the last one is the number of samples, which is that of each of them."""
        *squares, samples = super().add_parts(numbers)
        total = torch.tensor(squares, dtype=torch.float64, device=self.device)
        with explained(self._find_failures):
            dist.all_reduce(total, group=self._norms)
        return [*total.tolist(), samples]

    def refuse_apart(self, sums: Mapping[str, Tensor]) -> None:
        """What is whole on all ranks has the same gradient on all, or it was used on a part."""
        whole, apart = sorted(name for name in sums if name not in self._cut), 0
        for place, name in enumerate(whole, 1):
            first = sums[name].detach().clone().contiguous()
            with explained(self._find_failures):
                dist.broadcast(first, group=self._norms, group_src=0)
            if not float((first - sums[name]).norm()) <= _APART * float(first.norm()):
                apart = apart or place
        found = torch.tensor(apart, device=self.device)
        with explained(self._find_failures):
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self._norms)
        if int(found):  # on one of them
            raise UnsupportedOperationError(
                f"parameter '{whole[int(found) - 1]}' is whole on every rank, and its clipped sums "
                "differ from rank to rank: it is used on activations of which each rank has a "
                "part, so that its gradient has parts, too, or ranks do not run the same samples "
                "alike (what changes them at random, and dropout, must draw alike). Use it on "
                "whole activations, spread the layer, or freeze the parameter. Nothing was "
                "released."
            )

    def noisy(
        self, totals: Sequence[Tensor], add_noise: AddNoise, names: Sequence[str] = ()
    ) -> list[Tensor]:
        """Each rank adds the noise to its part; to what is whole the first one of a row does."""
        noisy = super().noisy(totals, add_noise, names)
        with explained(self._find_failures):
            for i, name in enumerate(names):
                if name not in self._cut:
                    noisy[i] = noisy[i].contiguous()
                    dist.broadcast(noisy[i], group=self._norms, group_src=0)
        return noisy

    def digest_weights(self, model: nn.Module) -> dict[str, object]:
        """By part; what is whole is the same on all ranks of a row."""
        self.rest()
        held = {name: local_of(value) for name, value in model.state_dict().items()}
        cut = {name: value for name, value in held.items() if name in self._cut}
        whole = {name: value for name, value in held.items() if name not in self._cut}
        return {
            f"part {self._place}{self._shard_name} of the weights": digest_tensors(cut),
            f"the weights that are whole{self._shard_name}": digest_tensors(whole),
        }


class TensorParts(_Row):
    """Ranks with parts of weights, by ``parallelize_module``.

    Args:
        model: some of whose parameters are spread over one dimension of a mesh.
        is_seeded: as for replicas; here each part has its own leader.
    """

    has_collectives = True

    def __init__(self, model: nn.Module, *, is_seeded: bool = False) -> None:
        super().__init__(is_seeded=is_seeded)
        parameters: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
        spread = {
            name: (p.device_mesh, p.placements)
            for name, p in parameters.items()
            if is_distributed_tensor(p)
        }
        grid = self._join_row(spread)
        for members in zip(*grid, strict=True) if len(grid) > 1 else ():
            group = dist.new_group(list(members))
            if self.rank in members:
                self._column = group
        self._owners, self._copies = self._column, len(grid)

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


class ShardedParts(_Row, Shards):
    """Rows of ranks with parts of weights, each of which is sharded over a column.

    Args:
        model: all of whose parameters are sharded, and some spread over one dimension of a mesh.
        is_seeded: as for shards; here each part has its own leader.
    """

    _weights = " with shards of parts of the weights"

    def __init__(self, model: nn.Module, *, is_seeded: bool = False) -> None:
        super().__init__(model, is_seeded=is_seeded)
        sharded = self._sharded
        if sharded.copy_dim is not None:
            raise DistributedTrainingError(
                "fully_shard was given a mesh of two dimensions (HSDP) beside tensor parallelism",
                "Shard over one dimension: fully_shard(model, mesh=mesh['dp']).",
                "a mesh of three dimensions was not tried",
            )
        spread = {name: w.part for name, w in sharded.weights.items() if w.part is not None}
        grid = self._join_row(spread)
        self._column, own = self._group, sharded.mesh.mesh.flatten().tolist()
        if not all(self.gather(tuple(own) in zip(*grid, strict=True))):
            raise DistributedTrainingError(
                f"the parts of layers are on ranks {grid}, and this rank shares its shards with "
                f"ranks {own}",
                "Use the two dimensions of one mesh: parallelize_module(model, mesh['tp'], plan), "
                "then fully_shard(model, mesh=mesh['dp']).",
                "shards of different parts would be put together",
            )
        self._shard_name = f", shard {self._shard_place}"

    def _require_all(self, ranks: int) -> None:
        """That each rank is in a row and in a column is known when both are."""
