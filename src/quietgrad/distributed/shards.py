"""Ranks that each hold a part of the weights (FSDP2), or of a copy of them (HSDP).

The model itself gathers weights while it runs, so all ranks run the same passes. A rank without
samples runs one that counts for nothing. A clipped sum goes to the owners of its entries one
parameter at a time, in one order on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from quietgrad.distributed.facts import digest_tensors
from quietgrad.distributed.gathering import Gathering
from quietgrad.distributed.sharding import (
    ShardedModel,
    ShardedWeight,
    cut,
    in_equal_parts,
    local_of,
)
from quietgrad.distributed.world import HALF, AddNoise, Move, Replicas, explained, is_of_group
from quietgrad.errors import DistributedTrainingError, RankError
from quietgrad.grouping.base import Group
from quietgrad.reduction import ClippedReducer, Sums

_FAILED = 1 << 62  # above all that can be said


class Shards(Replicas):
    """Ranks with sharded weights.

    Args:
        model: all of whose parameters are sharded.
        is_seeded: whether noise is to be that of one process.
    """

    has_collectives = saves_room = True
    _weights = " with sharded weights"

    def __init__(self, model: nn.Module, *, is_seeded: bool = False) -> None:
        super().__init__(is_seeded=is_seeded)
        self._sharded = ShardedModel(model)
        mesh, copy_dim = self._sharded.mesh, self._sharded.copy_dim
        self._require_all(mesh.size())
        self._shard_place = mesh.get_local_rank(self._sharded.shard_dim)
        self._group = mesh.get_group(self._sharded.shard_dim)
        self._parts = mesh.size(self._sharded.shard_dim)
        self._owners = None if copy_dim is None else mesh.get_group(copy_dim)
        self._copies = 1 if copy_dim is None else mesh.size(copy_dim)
        self._device = torch.device(mesh.device_type)
        self._sums: ShardedSums | None = None
        self._gathering: Gathering | None = None

    def _require_all(self, ranks: int) -> None:
        """Refuse a mesh that leaves some out."""
        if ranks != self.size:
            raise DistributedTrainingError(
                f"the model is sharded over {ranks} of {self.size} ranks",
                "Use a mesh of all ranks.",
            )

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
    def together(self, reducer: ClippedReducer) -> Iterator[None]:
        """A micro-batch: whatever is raised in here ends the run on all ranks."""
        if self._failure is not None:
            raise RankError(f"this rank cannot go on without the others: {self._failure}")
        self._sums = reducer.grads if isinstance(reducer.grads, ShardedSums) else None
        try:
            with explained(self._find_failures), self._sharded.watched(partial(_pass, reducer)):
                yield
        except BaseException as error:
            self.note_failure(error)
            if not isinstance(error, RankError):  # others know, or cannot be told any more
                self._vote(_FAILED, is_last=True)
            raise
        finally:
            self._sums = None

    @contextmanager
    def verifying(self, *, is_wanted: bool) -> Iterator[None]:
        """If a rank wants to verify, weights are gathered for whichever asks for them."""
        if not self._vote(int(is_wanted)):
            yield
            return
        assert self._sums is not None
        self._sums.hold_back()
        sharded = self._sharded
        self._gathering = Gathering(list(sharded.groups), sharded.list_groups(), self._vote)
        try:
            with self._gathering.running():
                yield
        finally:
            self._gathering = None
            sharded.forget_passes()
            sharded.rest()

    def end_repeat(self) -> None:
        """Free what a repeat has left, which may have been cut short."""
        if self._gathering is not None:
            self._sharded.forget_passes()
            self._gathering.free()

    @contextmanager
    def moved_weights(self, model: nn.Module, move: Move) -> Iterator[None]:
        """As gathered by this rank alone."""
        assert self._gathering is not None
        with self._gathering.moved(move):
            yield

    def explain(self, error: BaseException | None) -> None:
        """Say in an error of torch, which nobody but the user catches, why others stopped."""
        if isinstance(error, RuntimeError) and is_of_group(error):
            error.add_note(self._find_failures() or "another rank ended, or hangs")

    def confirm(self) -> None:
        """All ranks have back-propagated, and none has refused."""
        self._vote(0)

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

    def new_sums(
        self,
        plain: type[Sums],
        trained: Callable[[], Mapping[str, nn.Parameter]],
        groups: Sequence[Group],
    ) -> Sums:
        """To which clipped sums of whole gradients are added."""
        by_module = self._sharded.list_groups()
        weights = {name: self._sharded.weights[name] for name in trained()}
        return ShardedSums(weights, groups, by_module, self)

    def scatter(self, weights: Sequence[ShardedWeight], wholes: Sequence[Tensor]) -> list[Tensor]:
        """Of sums, added up over the ranks that share a copy, this rank's parts."""
        dims = [weight.dim for weight in weights]
        rows = [
            in_equal_parts(whole, dim, self._parts) for whole, dim in zip(wholes, dims, strict=True)
        ]
        joined = rows[0] if len(rows) == 1 else torch.cat(rows, 1)
        own = joined.new_empty(joined.shape[1])
        dist.reduce_scatter_single(own, joined.flatten(), group=self._group)
        parts = []
        pieces = zip(weights, wholes, own.split([r.shape[1] for r in rows]), strict=True)
        for (shard, dim, *_), whole, part in pieces:
            shape = whole.movedim(dim, 0).shape[1:]
            held = part.view(-1, *shape)[: local_of(shard).shape[dim]]
            parts.append(held.movedim(0, dim).contiguous())
        return parts

    def any_rank(self, is_so: bool) -> bool:
        """Whether it is so on one of them."""
        return bool(self._vote(int(is_so)))

    def add_parts(self, numbers: Sequence[float]) -> list[float]:
        """Numbers, added up over the ranks that share a copy."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        with explained(self._find_failures):
            dist.all_reduce(total, group=self._group)
        return list(total.tolist())

    def noisy(
        self, totals: Sequence[Tensor], add_noise: AddNoise, names: Sequence[str] = ()
    ) -> list[Tensor]:
        """This rank's parts of the sums over all ranks, with noise."""
        if not self._is_seeded:
            return super().noisy(totals, add_noise)
        return self._noisy_as_one(totals, add_noise, names)

    def _noisy_as_one(
        self, totals: Sequence[Tensor], add_noise: AddNoise, names: Sequence[str]
    ) -> list[Tensor]:
        """With a seed every rank makes all noise, as one process would, and takes its part."""
        wholes, parts = [], []
        for total, name in zip(totals, names, strict=True):
            shard, dim, shape, _ = self._sharded.weights[name]
            total = total.float() if total.dtype in HALF else total.contiguous()
            if self._owners is not None:
                dist.all_reduce(total, group=self._owners)
            wholes.append(total.new_zeros(*shape, *total.shape[shard.ndim :]))
            cut(wholes[-1], dim, self._parts, self._shard_place).copy_(total)
            parts.append(dim)
        noisy = add_noise(wholes)
        pairs = zip(noisy, parts, strict=True)
        return [cut(each, dim, self._parts, self._shard_place).contiguous() for each, dim in pairs]

    # -- facts ---------------------------------------------------------------------------------

    def digest_weights(self, model: nn.Module) -> dict[str, object]:
        """Ranks that hold the same part of the weights must hold the same."""
        self.rest()
        held = {name: local_of(t) for name, t in model.state_dict().items()}
        return {f"part {self._shard_place} of the weights": digest_tensors(held)}


def _pass(reducer: ClippedReducer, number: int) -> None:
    """Gradients have passed a group of weights, and the same on all ranks."""
    sums = reducer.grads
    if isinstance(sums, ShardedSums) and not sums.holds_back and sums.has_early(number):
        reducer.reduce_ready(number)
        sums.scatter_early(number)


# Entries of small parameters whose sums are scattered together; a large one goes alone.
_TOGETHER = 1 << 18


class ShardedSums(Sums):
    """Of every clipped sum this rank's part.

    Sums of a micro-batch wait until all ranks scatter them, in the same order: those of groups that
    are clipped within a sharded module when gradients have passed it, and the others at the end, a
    few at a time, each when those before it are there or cannot come any more.

    Args:
        weights: by name; all ranks go through them in this order.
        groups: of parameters that are clipped together.
        modules: the names of parameters that are gathered together.
        world: adds up and scatters.
    """

    can_redo = False
    has_order = True

    def __init__(
        self,
        weights: Mapping[str, ShardedWeight],
        groups: Sequence[Group],
        modules: Sequence[Sequence[str]],
        world: Shards,
    ) -> None:
        super().__init__()
        self._weights, self._world = weights, world
        inner = [set(names) for names in modules]
        own = [group.parameters for group in groups]
        self._early = [
            [name for names in own if set(names) <= module for name in names] for module in inner
        ]
        early = {name for names in self._early for name in names}
        self._late = _Plan([name for name in weights if name not in early], weights)
        self._whole_plan = _Plan([name for names in own for name in names], weights)
        self._wholes: dict[str, Tensor] = {}
        self._left: list[list[str]] | None = None  # the next ones last
        self._coming: set[str] = set()

    def hold_back(self) -> None:
        """Nothing of the micro-batch is summed before all factors are there."""
        self.holds_back = True

    @property
    def _plan(self) -> _Plan:
        return self._whole_plan if self.holds_back else self._late

    def order(self, name: str) -> int:
        """The place of a parameter among those that are summed last."""
        return self._plan.order.get(name, -1)

    def add(self, name: str, make: Callable[[Tensor | None], Tensor]) -> None:
        """Add to the sum of the micro-batch."""
        self._wholes[name] = make(self._wholes.get(name))
        self._coming.discard(name)
        self._go_on()

    def add_several(self, shares: dict[str, Tensor]) -> None:
        """The same for sums that are there already."""
        for name, share in shares.items():
            self.add(name, partial(_sum, share))

    def has_early(self, number: int) -> bool:
        """Whether some group is clipped within a module."""
        return bool(self._early[number])

    def scatter_early(self, number: int) -> None:
        """Gradients have passed a module."""
        self._scatter(self._early[number])

    def begin_last(self, names: Sequence[str]) -> None:
        """Nothing but the sums of these is to come."""
        self._left, self._coming = self._plan.packs[::-1], set(names)
        self._go_on()

    def finish(self) -> None:
        """The micro-batch is over."""
        if self._left is None:
            self.begin_last(())
        assert not self._left
        self._left = None
        # What came after its module had been passed, as where activations are computed again.
        is_late = not self.holds_back and any(self._early)
        if is_late and self._world.any_rank(bool(self._wholes)):
            for names in filter(None, self._early):
                self._scatter(names)
        assert not self._wholes
        self.holds_back = False

    def _go_on(self) -> None:
        while self._left and self._coming.isdisjoint(self._left[-1]):
            self._scatter(self._left.pop())

    def _scatter(self, names: Sequence[str]) -> None:
        """Of zeros, where no sample used a parameter: other ranks may have some that did."""
        self.is_torn = True
        weights = [self._weights[name] for name in names]
        kinds: dict[torch.dtype, list[int]] = {}
        for i, weight in enumerate(weights):
            kinds.setdefault(_type_of_sum(weight.shard), []).append(i)
        for dtype, places in kinds.items():
            own = [weights[i] for i in places]
            wholes = [self._whole(names[i], weights[i], dtype) for i in places]
            for i, part in zip(places, self._world.scatter(own, wholes), strict=True):
                if names[i] in self:
                    self[names[i]].add_(part)
                else:
                    self[names[i]] = part

    def _whole(self, name: str, weight: ShardedWeight, dtype: torch.dtype) -> Tensor:
        whole = self._wholes.pop(name, None)
        if whole is None:
            pair = (2,) if weight.shard.is_complex() else ()
            device = local_of(weight.shard).device
            return torch.zeros(*weight.shape, *pair, dtype=dtype, device=device)
        return whole.to(dtype)


def _type_of_sum(parameter: Tensor) -> torch.dtype:
    """The same on all ranks: where no sample used a parameter, nobody knows another."""
    if parameter.is_complex():
        return parameter.dtype.to_real()
    return torch.float32 if parameter.dtype in HALF else parameter.dtype


class _Plan:
    """In which order sums are scattered, and which together.

    Args:
        names: of parameters, in that order.
        weights: by name.
    """

    def __init__(self, names: Sequence[str], weights: Mapping[str, ShardedWeight]) -> None:
        self.order = {name: place for place, name in enumerate(names)}
        self.packs = list(_put_together(names, weights))


def _put_together(
    names: Sequence[str], weights: Mapping[str, ShardedWeight]
) -> Iterator[list[str]]:
    found: list[str] = []
    size = 0
    for name in names:
        entries = weights[name].shape.numel()
        if found and size + entries > _TOGETHER:
            yield found
            found, size = [], 0
        found, size = [*found, name], size + entries
    if found:
        yield found


def _sum(share: Tensor, total: Tensor | None) -> Tensor:
    return share if total is None else total.add_(share)
