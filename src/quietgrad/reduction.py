"""Norms -> weights -> clipped sum, group by group, while the backward pass is still running.

This is Algorithm 1 of "On the Efficacy of Group-wise Clipping": a group is clipped, summed and
freed soon after the last use of its parameters has been back-propagated. Groups whose factors are
small wait for one another, so that one operation on the norms of all of them takes the place of
one for each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from quietgrad.clipping import Clipping
from quietgrad.errors import BoundError, ChangedGradientError, ChangedSampleError
from quietgrad.factors.base import (
    Doubt,
    Factor,
    RawNorms,
    StackedNorms,
    doubts_noted,
    ignoring_autocast,
)
from quietgrad.factors.combined import (
    add_extremes,
    find_extremes,
    norms_of_extremes,
    usual_range,
)
from quietgrad.grouping.base import Group
from quietgrad.strategies import Evaluator

# Rounding may carry a clipped norm this far beyond its bound; anything more is a mistake.
_ROUNDING = 1e-4
# Bytes of factors that wait to be clipped together: a CPU finds few in its cache, and other devices
# are asked as rarely as possible how it went. So many may what norms are made of take besides.
WAITING_BYTES = {"cpu": 1 << 22}
_WAITING_BYTES_ELSEWHERE = 1 << 26


def waiting_bytes(device: torch.device) -> int:
    """Bytes of factors that wait on a device until they are clipped together."""
    return WAITING_BYTES.get(device.type, _WAITING_BYTES_ELSEWHERE)


class Sums(dict[str, Tensor]):
    """Clipped sums by parameter, over one or several micro-batches.

    They are added to in place. ``is_torn`` while a micro-batch has been added in part.

    Attributes:
        can_redo: whether the first sum of a batch can be taken back and made again.
        has_order: whether it matters which of the last sums are added first.
        holds_back: whether nothing is to be added before all gradients are there.
    """

    is_torn = False
    can_redo = True
    has_order = False
    holds_back = False

    def add(self, name: str, make: Callable[[Tensor | None], Tensor]) -> None:
        """Add a parameter's sum over a micro-batch: ``make`` adds it to what it is given."""
        self[name] = make(self.get(name))

    def add_several(self, shares: dict[str, Tensor]) -> None:
        """The same for sums that are there already."""
        known = [name for name in shares if name in self]
        if known:
            torch._foreach_add_([self[name] for name in known], [shares[n] for n in known])
        self.update({name: share for name, share in shares.items() if name not in self})

    def order(self, name: str) -> int:
        """The place of a parameter among those that are added last: any, as far as it matters."""
        return 0

    def begin_last(self, names: Sequence[str]) -> None:
        """Only the sums of these parameters are still to come of the micro-batch."""

    def finish(self) -> None:
        """The micro-batch is over."""


class Measured(NamedTuple):
    """A parameter whose gradients were measured.

    Attributes:
        name: the parameter's.
        factor: from which its sum is to be taken.
        norms: squared, or what they are made of.
        doubts: what was taken for granted.
        samples: of the factor, which are this parameter's; None if it is the factor of no other.
    """

    name: str
    factor: Factor
    norms: Tensor | RawNorms
    doubts: tuple[Doubt, ...]
    samples: slice | None = None

    @property
    def own(self) -> Factor:
        """The factor of this parameter alone."""
        return self.factor if self.samples is None else self.factor.select(self.samples)


class Bulk:
    """Groups that are clipped at once: norms are computed, and corrected, together.

    Args:
        ready: the numbers of the groups.
        held: what each of them consists of.
        batch: the number of samples.

    Attributes:
        found: the parameters of all groups.
        places: for each of them the place of its group among those that are ready.
        stacks: norms of several parameters, and which.
    """

    def __init__(self, ready: Sequence[int], held: Sequence[list[Measured]], batch: int) -> None:
        self.ready, self.held, self._batch = ready, held, batch
        self.found = [found for group in held for found in group]
        self.places = [place for place, group in enumerate(held) for _ in group]
        kinds: dict[Hashable, dict[Hashable, list[int]]] = {}
        self._single: dict[int, Tensor] = {}
        last: tuple[RawNorms | None, list[int]] = None, []
        for i, (_, _, norms, *_) in enumerate(self.found):
            if isinstance(norms, Tensor):
                self._single[i] = norms
                continue
            if norms is not last[0]:  # several parameters may have one for all of them
                kind, run = norms.places
                last = norms, kinds.setdefault(kind, {}).setdefault(run, [])
            last[1].append(i)
        self.stacks: list[tuple[list[int], StackedNorms]] = []
        for alike in kinds.values():
            members = [i for same in alike.values() for i in same]
            raw = list(
                {
                    id(n): n for i in members if isinstance(n := self.found[i].norms, RawNorms)
                }.values()
            )
            self.stacks.append((members, raw[0].stacked(raw)))

    def factors(self) -> dict[Factor, str]:
        """All factors, each with the name of a parameter."""
        return {found.factor: found.name for found in self.found}

    def squares(self) -> Tensor:
        """Squared norms by group, ``[G, B]``."""
        columns = [stack.squares for _, stack in self.stacks]
        if self._single:
            columns += [column.unsqueeze(0) for column in self._single.values()]
        home, widest = columns[0].device, _widest(columns)
        joined = torch.cat([column.to(home, widest) for column in columns])
        if len(self.ready) == 1:
            return joined.sum(0, keepdim=True)
        members = [i for own, _ in self.stacks for i in own] + list(self._single)
        places = _index(tuple(self.places[i] for i in members), home)
        return joined.new_zeros(len(self.ready), self._batch).index_add_(0, places, joined)

    def spread(self, weights: Tensor, members: Sequence[int]) -> Tensor:
        """For each of these parameters the weights ``[G, B]`` of its group."""
        device = self.found[members[0]].factor.device
        places = tuple(self.places[i] for i in members)
        if len(set(places)) == 1:
            return weights[places[0]].to(device).expand(len(places), -1)
        return weights[_index(places, weights.device)].to(device)

    def are_usual(self, squares: Tensor) -> Iterator[Tensor]:
        """Whether these norms can be used as they are: truth values, all on one device."""
        lowest, highest = usual_range(self._narrowest())
        yield ((squares >= lowest) & (squares <= highest)).all()
        for _, stack in self.stacks:
            if stack.are_fine is not None:
                yield stack.are_fine.all().to(squares.device)
        for found in self.found:
            for doubt in found.doubts:
                yield doubt.is_fine.to(squares.device)

    def measure_again(self) -> None:
        """Take all norms from what the factors are made of now."""
        self.stacks, self._single = [], {i: f.own.sq_norm() for i, f in enumerate(self.found)}

    def repaired(self) -> Tensor:
        """Squared norms by group, after those were evaluated again that can be."""
        for _, stack in self.stacks:
            stack.repair()
        for i in self._single:
            if any(not doubt.is_fine for doubt in self.found[i].doubts):
                self._single[i] = self.found[i].own.sq_norm()
        return self.squares()

    def norms(
        self, place: int, squares: Tensor, joint: Joint | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Norms of a group, and the samples for which they were not taken in the usual way."""
        norms = squares.clamp_min(0).sqrt()
        is_extreme = find_extremes(squares, self._narrowest() if joint is None else joint.dtype)
        if not is_extreme.any():
            return norms, None
        samples = is_extreme.nonzero().flatten()
        held = [f for f in self.held[place] if joint is None or joint.counts(f.name)]
        exact = norms_of_extremes((found.own for found in held), samples)
        if joint is not None:
            exact = joint.add_squares(exact.double().square()).sqrt()
        return norms.index_copy(0, samples, exact.to(norms)), samples

    def _narrowest(self) -> torch.dtype:
        return narrowest(factor.dtype for factor in self.factors())


@lru_cache(maxsize=256)
def _index(places: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(places, device=device)


def narrowest(types: Iterable[torch.dtype]) -> torch.dtype:
    """Of these types the one with the fewest bits."""
    return min(types, key=lambda dtype: torch.finfo(dtype).bits)


def _widest(tensors: Sequence[Tensor]) -> torch.dtype:
    return max((t.dtype for t in tensors), key=lambda dtype: torch.finfo(dtype).bits)


def _refuse_changed(
    bulk: Bulk, error: type[ChangedGradientError | ChangedSampleError] = ChangedGradientError
) -> None:
    """What was measured must be what is summed."""
    changed = [(name, factor.changed()) for factor, name in bulk.factors().items()]
    for name, is_changed in changed:
        if is_changed:
            raise error(name)


class Joint(Protocol):
    """Ranks that have parts of the same samples' gradients.

    Attributes:
        device: of what they tell each other.
        dtype: the narrowest type of the gradients that any of them clips next.
    """

    device: torch.device
    dtype: torch.dtype

    def agree(self, place: int, ready: Sequence[bool], types: Iterable[torch.dtype]) -> list[bool]:
        """Which groups are complete on all of these ranks, and what is the narrowest type.

        Refuses ranks that are at different places of a backward pass.
        """

    def counts(self, name: str) -> bool:
        """Whether the norms of this rank's part of a parameter count: others may have the same."""

    def add_squares(self, squares: Tensor) -> Tensor:
        """Squared norms, added up over these ranks: the same bits on each of them."""


class ClippedReducer:
    """Receives parameters' factors and turns each complete group into its clipped sum.

    Args:
        groups: the parameters that are clipped together.
        clipping: how.
        evaluator: how norms and sums are computed.
        batch: the number of samples.
        sums: what the sums are added to. Whoever gives them says when they are whole again.
        loss_scale: a power of two by which all gradients come multiplied. Norms, weights and sums
            are those of the gradients without it.
        counted: which samples are clipped and summed, ``[B]``; None for all. The others, which fill
            up a micro-batch, add nothing, whatever they are.
    """

    is_alone = True  # whether no other rank has parts of these gradients

    def __init__(
        self,
        groups: Sequence[Group],
        clipping: Clipping,
        evaluator: Evaluator,
        batch: int,
        sums: Sums | None = None,
        loss_scale: float = 1.0,
        counted: Tensor | None = None,
    ) -> None:
        self._counted = counted
        self.grads = Sums() if sums is None else sums
        self.groups, self.clipping, self._evaluator = groups, clipping, evaluator
        self._batch, self.loss_scale = batch, loss_scale
        self._group_of = {name: i for i, g in enumerate(groups) for name in g.parameters}
        self._missing = [set(group.parameters) for group in groups]
        self._held: list[list[Measured]] = [[] for _ in groups]
        self._ready: list[int] = []
        self._waiting = 0
        self._raw_bytes, self._all_raw_bytes = [0] * len(groups), 0
        self._doubts: list[Doubt] = []
        self._unread: Bulk | None = None
        self._broken: Tensor | None = None
        self._norms: list[Tensor | None] = [None] * len(groups)
        self._weights: list[Tensor | None] = [None] * len(groups)

    def parameter_done(self, name: str, factor: Factor) -> None:
        """Measure a parameter's gradients; clip its group if it was the last one missing."""
        index, device = self._group_of[name], factor.device
        if device.type == "cpu":  # where every question is answered at once
            norms, held = self._evaluator.measure(factor)
            found = Measured(name, held, self._limited(index, norms), ())
        else:
            with doubts_noted() as doubts:
                norms, held = self._evaluator.measure(factor)
                norms = self._limited(index, norms)
            found = Measured(name, held, norms, tuple(doubts))
        self._held[index].append(found)
        self._missing[index].discard(name)
        if not self._missing[index]:
            self._ready.append(index)
            if len(self.groups) > 1 and self.is_alone and not self.grads.holds_back:
                self._waiting += sum(found.factor.held_bytes() for found in self._held[index])
                if self._waiting > waiting_bytes(device):
                    self._reduce_ready(is_last=False)

    def joined_done(self, names: Sequence[str], factor: Factor) -> None:
        """The same of several parameters, whose factors are joined in one.

        Groups that are clipped one after the other take their own, and so do ranks with parts.
        """
        norms = None
        if len(self.groups) == 1 and self.is_alone and factor.device.type == "cpu":
            norms = self._evaluator.measure_joined(factor, len(names))
        if norms is None or self._all_raw_bytes + norms.nbytes > waiting_bytes(factor.device):
            for place, name in enumerate(names):
                self.parameter_done(name, factor.select(self._samples_of(place)))
            return
        self._raw_bytes[0] += norms.nbytes
        self._all_raw_bytes += norms.nbytes
        for place, name in enumerate(names):
            self._held[0].append(Measured(name, factor, norms, (), self._samples_of(place)))
        self._missing[0].difference_update(names)
        if not self._missing[0]:
            self._ready.append(0)

    def _samples_of(self, place: int) -> slice:
        return slice(place * self._batch, (place + 1) * self._batch)

    def _limited(self, index: int, norms: Tensor | RawNorms) -> Tensor | RawNorms:
        """What is made of much is made at once: it would be held until then, or copied."""
        if isinstance(norms, Tensor):
            return norms
        size = norms.nbytes
        if self._all_raw_bytes + size > waiting_bytes(norms.tensors[0].device):
            return norms.compute()
        self._raw_bytes[index] += size
        self._all_raw_bytes += size
        return norms

    @ignoring_autocast
    def reduce_ready(self, place: int) -> None:
        """Clip at once what waits for others; gradients have come to this place on all ranks."""
        self._reduce_ready(is_last=False)

    @ignoring_autocast
    def finish(self, *, settled: bool = True) -> None:
        """Clip what is left, also the groups in which some parameter was not used at all.

        If not ``settled``, a device is not waited for: the sums are not to be used before
        :meth:`settle`.
        """
        self._ready += [i for i, missing in enumerate(self._missing) if missing]
        self._reduce_ready(is_last=True)
        self.grads.finish()
        if settled:
            self.settle()

    @property
    def norms(self) -> Tensor:
        """Per-sample norms by group, ``[B, M]``; infinite or NaN where the gradient was."""
        self.settle()
        return self._stacked(self._norms)

    @property
    def weights(self) -> Tensor:
        """Per-sample weights by group, ``[B, M]``; zero where the gradient was not finite."""
        self.settle()
        return self._stacked(self._weights)

    @property
    def nonfinite(self) -> int:
        """Samples with a gradient that is not finite, in some group."""
        self.settle()
        return 0 if self._broken is None else int(self._broken.sum())

    @property
    def doubt(self) -> Tensor | None:
        """Whether something was taken for granted that is not so: to be read, and told.

        None if nothing is open, so that the sums can be used.
        """
        if not self._doubts:
            return None
        home = self._doubts[0].is_fine.device
        return ~torch.stack([doubt.is_fine.to(home) for doubt in self._doubts]).all()

    @ignoring_autocast
    def settle(self, is_doubtful: bool | None = None) -> None:
        """Read :attr:`doubt`, unless it was, and do again what was not so."""
        if is_doubtful is None:
            is_doubtful = self.doubt is not None and bool(self.doubt)
        doubts, bulk = self._doubts, self._unread
        self._doubts, self._unread = [], None
        if not is_doubtful:
            return
        for doubt in doubts:
            if doubt.error is not None and not doubt.is_fine:
                raise doubt.error
        assert bulk is not None  # other doubts were read before anything was summed
        _refuse_changed(bulk, ChangedSampleError)  # the user's loop went on since
        bulk.measure_again()  # torch does not count all writes
        for found in bulk.found:
            self.grads.pop(found.name, None)
        self._reduce_carefully(bulk)

    def _reduce_ready(self, *, is_last: bool) -> None:
        """Clip and sum what waits, as if every norm could be used as it came; if not, carefully."""
        ready = [index for index in self._ready if self._held[index]]  # others have no norms
        self._ready, self._waiting = [], 0
        if not ready:
            return
        bulk = self._take(ready, is_last=is_last)
        squares = bulk.squares()
        norms = self._unscaled(squares.sqrt())
        weights, are_bounded = self._weigh(norms, ready)
        weights = self._of_counted(weights)
        is_fine = torch.stack([*bulk.are_usual(squares), are_bounded]).all()
        # What is added to cannot be taken back: only the first sum of a batch can be done again.
        can_redo = self.grads.can_redo and not self.grads
        is_open = is_last and squares.device.type != "cpu" and can_redo
        if not is_open and not bool(is_fine):
            self._reduce_carefully(bulk)
            return
        for place, index in enumerate(ready):
            self._norms[index], self._weights[index] = norms[place], weights[place]
        self.grads.is_torn = True
        with doubts_noted() as doubts:
            self._add_sums(bulk, self._for_sum(weights), is_held=is_open)
        self._doubts += doubts
        if is_open:
            self._doubts.append(Doubt(is_fine))
            self._unread = bulk

    def _take(self, ready: list[int], *, is_last: bool) -> Bulk:
        """What is held of these groups; if they are the last ones, in the order of their sums."""
        if is_last:
            if self.grads.has_order:
                order = self.grads.order
                for index in ready:
                    self._held[index].sort(key=lambda found: order(found.name))
                ready.sort(key=lambda i: order(self._held[i][0].name) if self._held[i] else -1)
            self.grads.begin_last([found.name for i in ready for found in self._held[i]])
        bulk = Bulk(ready, [self._held[index] for index in ready], self._batch)
        for index in ready:
            self._held[index] = []
            self._all_raw_bytes -= self._raw_bytes[index]
        _refuse_changed(bulk)
        return bulk

    def _weigh(self, norms: Tensor, ready: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Weights of usual norms ``[G, B]``, and whether what they leave is within its bound."""
        radii = [self.groups[index].radius for index in ready]
        if len(set(radii)) == 1:
            weights = self.clipping.weights(norms.flatten(), radii[0]).view(norms.shape)
            bound = self.clipping.bound(radii[0]) * (1 + _ROUNDING)
            return weights, (norms * weights.abs() <= bound).all()
        pairs = zip(norms, radii, strict=True)
        weights = torch.stack([self.clipping.weights(row, radius) for row, radius in pairs])
        bounds = [self.clipping.bound(radius) * (1 + _ROUNDING) for radius in radii]
        are_bounded = norms * weights.abs() <= norms.new_tensor(bounds).unsqueeze(1)
        return weights, are_bounded.all()

    def _add_sums(self, bulk: Bulk, weights: Tensor, *, is_held: bool) -> None:
        """Unless it is held, to be summed again, what has been summed is freed at once."""
        summed = self._add_stacked(bulk, weights)
        rows, left = weights.unbind(), [*zip(bulk.places, bulk.found, strict=True)][::-1]
        if not is_held:
            bulk.found, bulk.held, bulk.stacks = [], [], []
        while left:
            place, found = left.pop()
            name = found.name
            if name not in summed:
                self.grads.add(
                    name, partial(self._evaluator.weighted_sum, found.own, rows[place], None)
                )

    def _add_stacked(self, bulk: Bulk, weights: Tensor) -> set[str]:
        """Sums of small gradients, made together; the names of their parameters."""
        summed: set[str] = set()
        for members, stack in bulk.stacks:
            own = [bulk.found[i] for i in members]
            # Not what was pulled back since: the norms are those of before.
            is_held = [found.factor for found in own] == [*stack.factors]
            if stack.has_sums and is_held:
                sums = zip(own, stack.weighted_sums(bulk.spread(weights, members)), strict=True)
                shares = {f.name: t.view(f.factor.shape) for f, t in sums if t is not None}
                self.grads.add_several(shares)
                summed.update(shares)
                for found in own:
                    if found.name in shares:
                        self._evaluator.release(found.factor)
        return summed

    def _reduce_carefully(self, bulk: Bulk) -> None:
        """The same where some samples' norms cannot be taken in the usual way."""
        squares = bulk.repaired()
        self._reduce_groups(bulk, [bulk.norms(i, row) for i, row in enumerate(squares)])

    def _reduce_groups(self, bulk: Bulk, norms: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """One after the other."""
        broken = torch.zeros(self._batch, dtype=torch.bool, device=norms[0][0].device)
        for index, held, found in zip(bulk.ready, bulk.held, norms, strict=True):
            broken |= self._of_counted(~self._reduce_group(index, held, *found))
        self._broken = broken if self._broken is None else self._broken | broken

    def _reduce_group(
        self, index: int, held: Sequence[Measured], norms: Tensor, extremes: Tensor | None
    ) -> Tensor:
        """Clip and sum one group; which samples are finite."""
        group, norms = self.groups[index], self._unscaled(norms)
        finite = norms.isfinite()
        weights = self.clipping.weights(norms.where(finite, 0.0), group.radius).where(finite, 0.0)
        weights = self._of_counted(weights)
        self._check_bound(group, norms.where(finite, 0.0), weights)
        self._norms[index], self._weights[index] = norms, weights
        self.grads.is_torn = True
        samples, weights = None, self._for_sum(weights)
        # Whatever a gradient of norm zero consists of, no weight may enlarge it.
        usual = weights.where(norms != 0, 0.0)
        if extremes is not None:
            samples = None if finite.all() else finite.nonzero().flatten()
            usual = usual.index_fill(0, extremes, 0.0)
            extremes = extremes[(weights.ne(0) & norms.ne(0))[extremes]]

        def add(factor: Factor, total: Tensor | None) -> Tensor:
            total = self._evaluator.weighted_sum(factor, usual, samples, total)
            if extremes is not None and len(extremes):
                total = add_extremes(factor, extremes, weights, total)
            return total

        for found in held:
            self.grads.add(found.name, partial(add, found.own))
        return finite

    def _of_counted(self, values: Tensor) -> Tensor:
        """Zero, or False, for samples that do not count; those are in the last dimension."""
        return (
            values
            if self._counted is None
            else values.masked_fill(~self._counted.to(values.device), 0)
        )

    def _unscaled(self, norms: Tensor) -> Tensor:
        """Norms without the scale of the losses; at least the smallest number that is whole."""
        if self.loss_scale == 1.0:
            return norms
        found = norms / self.loss_scale
        least = torch.finfo(found.dtype).tiny
        return torch.where((norms > 0) & (found < least), least, found)

    def _for_sum(self, weights: Tensor) -> Tensor:
        """The weights of gradients that are scaled."""
        return weights if self.loss_scale == 1.0 else weights / self.loss_scale

    def _check_bound(self, group: Group, norms: Tensor, weights: Tensor) -> None:
        bound = self.clipping.bound(group.radius)
        largest = (norms * weights.abs()).max().item() if len(norms) else 0.0
        if not largest <= bound * (1 + _ROUNDING):
            raise BoundError(
                f"clipping by {self.clipping} left a norm of {largest:.6g} in group "
                f"'{group.name}', above its bound {bound:.6g}: the noise would not cover it."
            )

    def _stacked(self, columns: Sequence[Tensor | None]) -> Tensor:
        present = [c if c is not None else torch.zeros(self._batch, device="cpu") for c in columns]
        widest = _widest(present)
        device = next((c.device for c in columns if c is not None), None)
        return torch.stack([c.to(device=device, dtype=widest) for c in present], 1)
