"""Ranks that each hold a part of the weights (FSDP2), or of a copy of them (HSDP).

The model itself gathers weights while it runs, so all ranks run the same passes. A rank without
samples runs one that counts for nothing. A clipped sum goes to the owners of its entries one
parameter at a time, in one order on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quietgrad.distributed.facts import digest_tensors
from quietgrad.distributed.sharding import ShardedModel, cut, in_equal_parts, local_of
from quietgrad.distributed.world import HALF, AddNoise, Replicas, explained, is_of_group
from quietgrad.errors import DistributedTrainingError, RankError
from quietgrad.reduction import Sums

_NOTHING, _VERIFY, _FAILED = range(3)


class Shards(Replicas):
    """Ranks with sharded weights.

    Args:
        model: all of whose parameters are sharded.
        is_seeded: whether noise is to be that of one process.
    """

    has_collectives = True

    def __init__(self, model: nn.Module, *, is_seeded: bool = False) -> None:
        super().__init__(is_seeded=is_seeded)
        self._sharded = ShardedModel(model)
        mesh, copy_dim = self._sharded.mesh, self._sharded.copy_dim
        if mesh.size() != self.size:
            raise DistributedTrainingError(
                f"the model is sharded over {mesh.size()} of {self.size} ranks",
                "Use a mesh of all ranks.",
            )
        self._place = mesh.get_local_rank(self._sharded.shard_dim)
        self._group = mesh.get_group(self._sharded.shard_dim)
        self._parts = mesh.size(self._sharded.shard_dim)
        self._owners = None if copy_dim is None else mesh.get_group(copy_dim)
        self._copies = 1 if copy_dim is None else mesh.size(copy_dim)
        self._device = torch.device(mesh.device_type)

    # -- passes of the model -------------------------------------------------------------------

    def most(self, drawn: int) -> int:
        """The largest number of samples that any rank has of so many."""
        return -(-drawn // self.data_size)

    def rest(self) -> None:
        """Free what is gathered, so that parameters are those that the optimizer holds."""
        self._sharded.rest()

    def at_rest(self, parameter: Tensor) -> Tensor:
        """A parameter as the optimizer holds it."""
        return self._sharded.at_rest(parameter)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A micro-batch: whatever is raised in here ends the run on all ranks."""
        if self._failure is not None:
            raise RankError(f"this rank cannot go on without the others: {self._failure}")
        try:
            with explained(self._find_failures):
                yield
        except BaseException as error:
            self.note_failure(error)
            if not isinstance(error, RankError):  # others know, or cannot be told any more
                self._vote(_FAILED, is_last=True)
            raise

    @contextmanager
    def verifying(self, *, is_wanted: bool) -> Iterator[None]:
        """If a rank wants to verify, all weights are gathered on all ranks meanwhile."""
        if self._vote(_VERIFY if is_wanted else _NOTHING):
            with self._sharded.gathered():
                yield
        else:
            yield

    def explain(self, error: BaseException | None) -> None:
        """Say in an error of torch, which nobody but the user catches, why others stopped."""
        if isinstance(error, RuntimeError) and is_of_group(error):
            error.add_note(self._find_failures() or "another rank ended, or hangs")

    def confirm(self) -> None:
        """All ranks have back-propagated, and none has refused."""
        self._vote(_NOTHING)

    def _vote(self, code: int, *, is_last: bool = False) -> int:
        """The largest of what the ranks say."""
        said = torch.tensor([code], device=self._device)
        try:
            dist.all_reduce(said, dist.ReduceOp.MAX)
        except RuntimeError:
            if is_last:
                return code
            raise
        if int(said) == _FAILED and not is_last:
            raise RankError(self._find_failures() or "another rank stopped")
        return int(said)

    # -- sums ----------------------------------------------------------------------------------

    def new_sums(self, trained: Mapping[str, nn.Parameter]) -> Sums:
        """To which clipped sums of whole gradients are added."""
        return ShardedSums({n: self.at_rest(p) for n, p in trained.items()}, self.scatter)

    def scatter(self, parameter: Any, whole: Tensor) -> Tensor:
        """Of a gradient, added up over the ranks that share a copy, this rank's part."""
        dim = parameter.placements[-1].dim
        rows = local_of(parameter).shape[dim]
        flat = in_equal_parts(whole, dim, self._parts)
        own = flat.new_empty(flat.numel() // self._parts)
        dist.reduce_scatter_single(own, flat, group=self._group)
        shape = whole.movedim(dim, 0).shape[1:]
        return own.view(-1, *shape)[:rows].movedim(0, dim).contiguous()

    def add_parts(self, numbers: Sequence[float]) -> list[float]:
        """Numbers, added up over the ranks that share a copy."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        with explained(self._find_failures):
            dist.all_reduce(total, group=self._group)
        return list(total.tolist())

    def noisy(
        self, totals: Sequence[Tensor], add_noise: AddNoise, trained: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """This rank's parts of the sums over all ranks, with noise."""
        if not self._is_seeded:
            return super().noisy(totals, add_noise)
        return self._noisy_as_one(totals, add_noise, trained)

    def _noisy_as_one(
        self, totals: Sequence[Tensor], add_noise: AddNoise, trained: Sequence[Tensor]
    ) -> list[Tensor]:
        """With a seed every rank makes all noise, as one process would, and takes its part."""
        wholes, parts = [], []
        for total, parameter in zip(totals, trained, strict=True):
            spread: Any = self.at_rest(parameter)
            total = total.float() if total.dtype in HALF else total.contiguous()
            if self._owners is not None:
                dist.all_reduce(total, group=self._owners)
            dim, extra = spread.placements[-1].dim, total.shape[spread.ndim :]
            wholes.append(total.new_zeros(*spread.shape, *extra))
            cut(wholes[-1], dim, self._parts, self._place).copy_(total)
            parts.append(dim)
        noisy = add_noise(wholes)
        pairs = zip(noisy, parts, strict=True)
        return [cut(each, dim, self._parts, self._place).contiguous() for each, dim in pairs]

    # -- facts ---------------------------------------------------------------------------------

    def digest_weights(self, model: nn.Module) -> dict[str, object]:
        """Ranks that hold the same part of the weights must hold the same."""
        self.rest()
        held = {name: local_of(t) for name, t in model.state_dict().items()}
        return {f"part {self._place} of the weights": digest_tensors(held)}


class ShardedSums(Sums):
    """Of every clipped sum this rank's part.

    Sums of a micro-batch wait until those before them, in the order of the parameters, are there
    or cannot come any more. Then they are added up over the ranks, one after the other.

    Args:
        parameters: by name; all ranks go through them in this order.
        scatter: makes this rank's part of a parameter's sum over all ranks.
    """

    can_redo = False

    def __init__(
        self, parameters: Mapping[str, Any], scatter: Callable[[Any, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self._parameters, self._scatter = parameters, scatter
        self._order = {name: place for place, name in enumerate(parameters)}
        self._wholes: dict[str, Tensor] = {}
        self._left: list[str] | None = None  # the next one last
        self._coming: set[str] = set()

    def order(self, name: str) -> int:
        """The place of a parameter among those that are summed last."""
        return self._order[name]

    def add(self, name: str, make: Callable[[Tensor | None], Tensor]) -> None:
        """Add to the sum of the micro-batch; to that of the batch if it is next."""
        self._wholes[name] = make(self._wholes.get(name))
        self._coming.discard(name)
        self._go_on()

    def add_several(self, shares: dict[str, Tensor]) -> None:
        """The same for sums that are there already."""
        for name, share in shares.items():
            self.add(name, partial(_sum, share))

    def begin_last(self, names: Sequence[str]) -> None:
        """Nothing but the sums of these is to come."""
        self._left, self._coming = list(self._parameters)[::-1], set(names)
        self._go_on()

    def finish(self) -> None:
        """The micro-batch is over."""
        if self._left is None:
            self.begin_last(())
        assert not self._left
        assert not self._wholes
        self._left = None

    def _go_on(self) -> None:
        while self._left and self._left[-1] not in self._coming:
            name = self._left.pop()
            self.is_torn = True
            parameter = self._parameters[name]
            part = self._scatter(parameter, self._whole(name, parameter))
            if name in self:
                self[name].add_(part)
            else:
                self[name] = part

    def _whole(self, name: str, parameter: Any) -> Tensor:
        """The same type on all ranks: where no sample used a parameter, nobody knows another."""
        dtype = torch.float32 if parameter.dtype in HALF else parameter.dtype
        if parameter.is_complex():
            dtype = parameter.dtype.to_real()
        whole = self._wholes.pop(name, None)
        if whole is None:
            pair = (2,) if parameter.is_complex() else ()
            device = local_of(parameter).device
            return torch.zeros(*parameter.shape, *pair, dtype=dtype, device=device)
        return whole.to(dtype)


def _sum(share: Tensor, total: Tensor | None) -> Tensor:
    return share if total is None else total.add_(share)
