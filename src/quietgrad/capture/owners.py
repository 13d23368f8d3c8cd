"""Which sample a row of a gradient belongs to: every loss is multiplied by its own power of two.

A row of the gradient must then be multiplied by that of its sample, to the last bit. Where one
dimension runs over the samples, this confirms it. Where none does (routed tokens, packed steps,
joined graphs), the power tells the sample of each row. Rows without a gradient belong to nobody:
they contribute nothing. A row in which several powers meet is mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quietgrad.capture.choice import random_order
from quietgrad.capture.compare import has_digits
from quietgrad.capture.layout import Layout, is_multiple
from quietgrad.factors.base import Later, Verdict, any_of, is_at_hand, negated, send
from quietgrad.factors.membership import Membership
from quietgrad.factors.routed import list_slots

if TYPE_CHECKING:
    from quietgrad.capture.layout import LayoutTable
    from quietgrad.capture.tape import Arrival, Site

# Powers of two that losses are multiplied by: far from what any type of number cannot hold.
_CODES, _LARGEST = 64, 31
_NOBODY = -1
# Times the smallest number: entries that keep all their digits when divided by the largest power.
_SMALLEST, _NEGLIGIBLE = 2.0**33, 1e-20


@dataclass(frozen=True, eq=False)
class OwnedLayout(Layout):
    """Dimensions ``dims`` hold rows of samples in any order and number.

    Attributes:
        owners: the sample of each row, of the sizes of ``dims``; -1 if it is nobody's.
        dims: of a tensor, in order; none if all of it belongs to one sample.
        is_touched: by leading dimensions, where there is a gradient. What stands elsewhere may be
            another sample's, and must not count: not even as zero times something infinite.
        broken: the samples ``[B]`` with something that is not finite, in rows that have no owner
            for that reason; None if there are none.
    """

    owners: Tensor = field(default_factory=lambda: torch.zeros(()))
    dims: tuple[int, ...] = ()
    is_touched: Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.bool))
    broken: Tensor | None = None

    def split(self, tensor: Tensor, trailing: int) -> Tensor:
        """``[B, K, *last trailing dims]``, with zeros where a sample has fewer than K positions."""
        tail = tensor.shape[tensor.ndim - trailing :]
        rows = self.gather(self.rows_of(self.clear(tensor)))
        each = rows.shape[1 : rows.ndim - trailing].numel()
        return rows.reshape(self.batch, each, *tail)

    def _spoil(self, rows: Tensor) -> Tensor:
        """Rows by sample, those of broken samples as what is not a number."""
        if self.broken is None or not has_digits(rows):
            return rows
        return rows.masked_fill(self.broken.view(-1, *[1] * (rows.ndim - 1)), torch.nan)

    def has_unowned(self, tensor: Tensor) -> bool:
        """Whether something that is not finite stands where there is no gradient."""
        if tensor.isfinite().all():
            return False
        depth = self.is_touched.ndim
        if tensor.shape[:depth] != self.is_touched.shape:
            return True
        finite = tensor.isfinite()
        finite = finite.flatten(depth).all(-1) if tensor.ndim > depth else finite
        return not bool((finite | self.is_touched).all())

    def clear(self, tensor: Tensor) -> Tensor:
        """A tensor with the same leading dimensions, with zeros where there is no gradient."""
        mask = self.is_touched.view((*self.is_touched.shape, *[1] * (tensor.ndim - self._depth)))
        return tensor.where(mask, 0)

    @property
    def _depth(self) -> int:
        return self.is_touched.ndim

    def unbroadcast(self, tensor: Tensor, shape: torch.Size) -> Tensor:
        """Sum each sample's part of ``tensor`` to ``shape``, from which it was broadcast."""
        padded = (1,) * (tensor.ndim - len(shape)) + tuple(shape)
        kept = [dim for dim in self.dims if padded[dim] != 1]
        others = [dim for dim in range(tensor.ndim) if dim not in self.dims]
        rows = self.rows_of(self.clear(tensor))
        summed = [1 + i for i, dim in enumerate(others) if padded[dim] == 1]
        rows = rows.sum(summed, keepdim=True) if summed else rows
        sizes = [padded[dim] for dim in kept]
        # Where the parameter has such a dimension itself, a row counts for its own entry only.
        places = self.owners.flatten().clone()
        for dim in kept:
            places = places * padded[dim] + self.index(dim)
        out = rows.new_zeros(self.batch * torch.Size(sizes).numel(), *rows.shape[1:])
        owned = self.owners.flatten() != _NOBODY
        out.index_add_(0, places[owned], rows[owned])
        out = out.view(self.batch, *sizes, *(padded[dim] for dim in others))
        order = [*kept, *others]
        missing = [dim for dim in self.dims if dim not in kept]
        out = out.view(*out.shape, *[1] * len(missing))
        order += missing
        back = sorted(range(len(order)), key=lambda place: order[place])
        out = out.permute(0, *(1 + place for place in back)).reshape(self.batch, *shape)
        return self._spoil(out)

    def select(self, tensor: Tensor, samples: Tensor) -> Tensor:
        """The rows of some samples, in their order."""
        slots = self._slots[samples.to(self._slots.device)].flatten()
        rows = self.rows_of(tensor)
        rows = rows[slots[slots < len(rows)]]
        return rows.movedim(0, self.dims[0]) if len(self.dims) == 1 else rows

    def replace(self, tensor: Tensor, samples: Tensor) -> Tensor:
        """The tensor with rows of sample ``i`` replaced by rows of ``samples[i]``, in turn."""
        owners = self.owners.flatten().cpu()
        sources = torch.arange(len(owners))
        for place, sample in enumerate(samples.tolist()):
            mine, others = ((owners == each).nonzero().flatten() for each in (place, sample))
            if place != sample and len(others):
                sources[mine] = others[torch.arange(len(mine)) % len(others)]
        if not self.dims:
            return tensor.clone()
        rows = self.rows_of(tensor)[sources.to(tensor.device)]
        rows = rows.view(*self.owners.shape, *rows.shape[1:])
        return rows.movedim(tuple(range(len(self.dims))), self.dims).contiguous()

    @staticmethod
    def of(layout: Layout, shape: torch.Size, membership: Membership | None = None) -> OwnedLayout:
        """A layout by one dimension in the same form, for tensors of this shape.

        If there is a ``membership``, it is the layout of records, and this that of their samples.
        """
        if isinstance(layout, OwnedLayout):
            return layout
        membership = membership or Membership(layout.batch)
        owners = membership.owners[layout.sample_of(shape[layout.dim], torch.device("cpu"))]
        return OwnedLayout(membership.samples, owners=owners, dims=(layout.dim,))

    def reshape(self, shape: torch.Size) -> OwnedLayout | None:
        """The same rows in the leading dimensions of another tensor; None if they do not fit."""
        count = self.owners.numel()
        for depth in range(len(shape) + 1):
            if shape[:depth].numel() == count and (depth == len(shape) or shape[depth] != 1):
                owners, dims = self.owners.reshape(shape[:depth]), tuple(range(depth))
                return OwnedLayout(self.batch, owners=owners, dims=dims)
        return None

    def keeps_places(self, membership: Membership) -> bool:
        """Whether rows in a dimension as long as the batch belong to the samples of its records."""
        places = membership.owners.to(self.owners.device)
        for dim, size in enumerate(self.owners.shape):
            shape = [len(places) if each == dim else 1 for each in range(self.owners.ndim)]
            if size != len(places):
                continue
            is_own = (self.owners == _NOBODY) | (self.owners == places.view(shape))
            if not bool(is_own.all()):
                return False
        return True

    def is_ragged(self, membership: Membership) -> bool:
        """Whether there is not one row for each record, nor as many side by side or in turn."""
        owners, places = self.owners.flatten().cpu(), membership.owners
        if len(owners) % len(places):
            return True
        each = len(owners) // len(places)
        regular = places.repeat_interleave(each), places.repeat(each)
        return not any(bool(((owners == r) | (owners == _NOBODY)).all()) for r in regular)

    def arrange(self, samples: Tensor) -> OwnedLayout:
        """The layout of the same rows when place ``i`` holds sample ``samples[i]``.

        Where those of a sample are not adjacent, in the order of samples, it stays what it is.
        """
        if not self.is_in_order:
            return self
        counts = torch.bincount(self.owners.flatten(), minlength=self.batch)
        owners = torch.arange(len(samples)).repeat_interleave(counts.cpu()[samples])
        owners = owners.to(self.owners.device)
        return replace(self, batch=len(samples), owners=owners, is_touched=torch.ones_like(owners))

    @property
    def is_in_order(self) -> bool:
        """Whether rows of the first sample come first, then those of the second, and so on."""
        owners = self.owners.flatten()
        is_sorted = (owners[1:] >= owners[:-1]).all() and (owners >= 0).all()
        return len(self.dims) == 1 and bool(is_sorted)

    def owner_of(self, like: Tensor) -> Tensor:
        """The sample of each entry of ``like``, or -1, in a shape that can be broadcast."""
        shape = [like.shape[dim] if dim in self.dims else 1 for dim in range(like.ndim)]
        return self.owners.to(like.device).view(shape)

    def is_usual(self, membership: Membership) -> bool:
        """Whether rows come in an order in which samples are joined.

        One after the other, in turn, or step by step with fewer samples in later steps.
        """
        told = self.owners.flatten()
        told = told[told != _NOBODY]
        is_sorted = bool((told[1:] >= told[:-1]).all())
        if is_sorted or not self.is_ragged(membership):
            return True
        return membership.is_plain and self._is_by_steps

    @property
    def _is_by_steps(self) -> bool:
        owners = self.owners.flatten().tolist()
        first = list(dict.fromkeys(owners))
        size, start = len(first), 0
        while start < len(owners):
            step = owners[start : start + size]
            size = next((n for n, own in enumerate(step) if own != first[n]), len(step))
            if not size:
                return False
            start += size
        return owners[: len(first)] == first

    def spread(self, factors: Tensor, like: Tensor) -> Tensor:
        """One factor for each sample as a tensor to multiply ``like`` with."""
        return send(factors, like.device, like.dtype)[self.owner_of(like).clamp_min(0)]

    def rows_of(self, tensor: Tensor) -> Tensor:
        """``[rows, *other dims]``."""
        if not self.dims:
            return tensor.unsqueeze(0)
        return tensor.movedim(self.dims, tuple(range(len(self.dims)))).flatten(
            0, len(self.dims) - 1
        )

    def gather(self, rows: Tensor) -> Tensor:
        """``[rows, ...]`` as ``[B, K, ...]``, with zeros where a sample has fewer than K."""
        padded = torch.cat([rows, rows.new_zeros(1, *rows.shape[1:])])
        return self._spoil(padded[self._slots])

    def index(self, dim: int) -> Tensor:
        """Of each row its place in one of ``dims``."""
        places = torch.arange(self.owners.shape[self.dims.index(dim)], device=self.owners.device)
        shape = [1] * len(self.dims)
        shape[self.dims.index(dim)] = -1
        return places.view(shape).expand(self.owners.shape).flatten()

    @cached_property
    def _slots(self) -> Tensor:
        return list_slots(self.owners.flatten(), self.batch)


def list_row_dims(count: int) -> list[tuple[int, ...]]:
    """Dimensions that rows may run over: none, each by itself, then several leading ones."""
    singles = [(dim,) for dim in range(count)]
    return [(), *singles, *(tuple(range(n)) for n in range(2, count + 1))]


class OwnerReader:
    """Reads the owners of one gradient's rows from passes with other powers of two.

    Args:
        dims: those in which the samples can be.
    """

    def __init__(self, dims: range) -> None:
        self._left: dict[tuple[int, ...], Tensor] | None = None
        self._dims = dims
        self._is_touched: Tensor | None = None

    def read(self, grad: Tensor, whole: Tensor, exponents: Sequence[int], base: int) -> bool:
        """Whether rows are multiples by these powers of two, whose places are the next digit.

        Args:
            grad: of losses, each times one of these powers.
            whole: of the losses themselves.
            exponents: by digit.
            base: of the digits that were read before.
        """
        if grad.shape != whole.shape or _smallest_told(whole) > _NEGLIGIBLE:
            return False
        depth = len(self._dims)
        powers = _find_powers(_peaks(grad, depth), _peaks(whole, depth))
        if self._is_touched is None:
            self._is_touched = ~powers.isnan()
        table = {exponent: digit for digit, exponent in enumerate(exponents)}
        found: dict[tuple[int, ...], Tensor] = {}
        for dims in list_row_dims(len(self._dims)) if self._left is None else self._left:
            digits = _read_digits(powers, dims, table)
            if digits is None or not _are_multiples(grad, whole, dims, digits, exponents):
                continue
            if self._left is not None:
                before = self._left[dims]
                digits = torch.where(digits == _NOBODY, digits, before + base * digits)
            found[dims] = digits
        self._left = found
        return bool(found)

    def make_layout(self, samples: Tensor) -> OwnedLayout | None:
        """Rows by their owners, if all have one; ``samples`` are in the order of the codes."""
        for dims, codes in (self._left or {}).items():
            if not codes.numel() or int(codes.max()) < len(samples):
                owners = samples.to(codes.device)[codes.clamp_min(0)]
                owners = owners.where(codes != _NOBODY, _NOBODY)
                assert self._is_touched is not None
                return OwnedLayout(
                    len(samples), owners=owners, dims=dims, is_touched=self._is_touched
                )
        return None


def match_rows(
    evidence: Sequence[tuple[Tensor, Tensor, Tensor]], membership: Membership
) -> OwnedLayout | None:
    """Owners of a tensor's rows by passes of gradients, seeds and gradients of the whole batch.

    Rows are those of the first dimension, or of the second if there is one of the first. None if
    some row has several owners.
    """
    first = evidence[0][0]
    if not first.ndim:
        return None
    dim = 1 if first.ndim > 1 and first.shape[0] == 1 else 0
    fits, is_touched = None, None
    for grad, seeds, whole in evidence:
        powers = _find_powers(grad, whole).movedim(dim, 0).reshape(grad.shape[dim], -1)
        lowest, highest = powers.nan_to_num(torch.inf), powers.nan_to_num(-torch.inf)
        lowest, highest = lowest.amin(1), highest.amax(1)
        is_touched = highest.isfinite() if is_touched is None else is_touched & highest.isfinite()
        if not lowest.where(is_touched, 0).equal(highest.where(is_touched, 0)):
            return None
        own = send(seeds[membership.firsts], highest.device, highest.dtype)
        same = highest[:, None] == own.log2().round()
        fits = same if fits is None else fits & same
    assert fits is not None
    assert is_touched is not None
    if bool((fits.sum(1).ne(1) & is_touched).any()):
        return None
    owners = fits.int().argmax(1).where(is_touched, _NOBODY)
    return OwnedLayout(membership.samples, owners=owners, dims=(dim,), is_touched=is_touched)


def _peaks(tensor: Tensor, depth: int) -> Tensor:
    """The largest entry of each row in the leading dimensions; a power of two changes none else."""
    sizes = tensor.abs()
    if tensor.ndim == depth:
        return sizes
    if not sizes.numel():
        return sizes.new_zeros(sizes.shape[:depth])
    peaks = sizes.flatten(depth).amax(-1)
    if not peaks.isfinite().all():
        peaks = sizes.nan_to_num(0.0, 0.0, 0.0).flatten(depth).amax(-1)
    return peaks


def _find_powers(grad: Tensor, whole: Tensor) -> Tensor:
    """The exponent of the power of two between entries; NaN where it cannot be told."""
    if whole.is_complex():
        grad, whole = grad.abs(), whole.abs()
    is_told = whole.abs().ge(_smallest_told(whole)) & grad.ne(0)
    is_told &= whole.isfinite() & grad.isfinite()
    grad, whole = (t if t.dtype == torch.float64 else t.float() for t in (grad, whole))
    powers = torch.frexp(grad).exponent - torch.frexp(whole).exponent
    return powers.to(torch.float32).where(is_told, torch.nan)


def _smallest_told(tensor: Tensor) -> float:
    """Entries of this size keep all their digits when divided by the largest power."""
    return _SMALLEST * torch.finfo(tensor.dtype).tiny


def _read_digits(powers: Tensor, dims: tuple[int, ...], table: dict[int, int]) -> Tensor | None:
    """The digit of each row; None if there are several in one row, or none of the table's."""
    others = [dim for dim in range(powers.ndim) if dim not in dims]
    if not powers.numel():
        return torch.full([powers.shape[dim] for dim in dims], _NOBODY, device=powers.device)
    lowest, highest = powers.nan_to_num(torch.inf), powers.nan_to_num(-torch.inf)
    if others:
        lowest, highest = lowest.amin(others), highest.amax(others)
    is_touched = highest.isfinite()
    if not lowest.where(is_touched, 0).equal(highest.where(is_touched, 0)):
        return None
    digits = torch.full(highest.shape, _NOBODY, dtype=torch.int64, device=powers.device)
    for power in highest[is_touched].unique().tolist():
        if int(power) not in table:
            return None
        digits[highest == power] = table[int(power)]
    return digits


def _are_multiples(
    grad: Tensor, whole: Tensor, dims: tuple[int, ...], digits: Tensor, exponents: Sequence[int]
) -> bool:
    """Whether rows are multiples, to the last bit, and those of nobody are next to nothing."""
    real = grad.real.dtype if grad.is_complex() else grad.dtype
    factors = torch.tensor([2.0**e for e in exponents], dtype=real, device=grad.device)
    shape = [grad.shape[dim] if dim in dims else 1 for dim in range(grad.ndim)]
    by_row = factors[digits.clamp_min(0)].view(shape)
    if not (digits == _NOBODY).any():
        return bool(is_multiple(grad, whole, by_row))
    is_owned = (digits != _NOBODY).view(shape)
    nothing = _smallest_told(whole)
    is_nobodys = ~is_owned & whole.isfinite()
    is_nothing = whole.abs().le(nothing) & grad.abs().le(nothing * float(factors.max()))
    return bool((is_nothing | ~is_nobodys).all()) and bool(
        is_multiple(grad.where(is_owned, 0), whole.where(is_owned, 0), by_row)
    )


Run = Callable[[Tensor, Callable[["Arrival"], object]], None]
"""Back-propagates losses times seeds, one for each record, and lets arrivals be observed."""


def read_powers(
    layouts: LayoutTable,
    membership: Membership,
    whole: Sequence[Arrival],
    run: Run,
    *,
    learn: bool = True,
    broken: Tensor | None = None,
) -> bool:
    """Whether all gradients scale with their sample's loss; rows that need it get their owners.

    Args:
        layouts: by one dimension, of the records.
        membership: of the records.
        whole: the gradients of all losses.
        run: a further pass.
        learn: whether it is remembered which layouts do not fit. It is not in repeats.
        broken: the records whose losses are not finite, or others of their samples, if rows may be
            anywhere: rows that are not finite must then be theirs.
    """
    codes = _Codes(membership.samples)
    comparison = _Multiples(layouts, whole, learn=learn, broken=broken)
    while True:
        for power, each in enumerate(codes.seeds()):
            seeds = membership.spread(each)
            comparison.begin(seeds, codes.exponents, _CODES**power)
            run(seeds, comparison)
            if not comparison.holds:
                break
        if not comparison.is_to_be_read_again():
            return comparison.holds and comparison.settle(codes.samples)


class _Codes:
    """Powers of two for samples, in several passes where there are more samples than powers.

    Attributes:
        exponents: of the powers.
        samples: in the order of their codes.
    """

    def __init__(self, count: int) -> None:
        self._codes = random_order(count)
        spread = max(1, _CODES // count)
        self.exponents = [digit * spread - _LARGEST for digit in range(min(_CODES, count))]
        self.samples = self._codes.argsort()

    def seeds(self) -> Iterator[Tensor]:
        """By sample, such that any two samples differ in some of them."""
        left, powers = self._codes, torch.tensor(self.exponents).double().exp2()
        while True:
            yield powers[left % _CODES]
            left = left // _CODES
            if not left.any():
                return


class _Multiples:
    """Compares gradients with those of all losses as they arrive; none has to be kept.

    Where no layout by one dimension is left, rows are asked for their owners.
    """

    def __init__(
        self,
        layouts: LayoutTable,
        whole: Sequence[Arrival],
        *,
        learn: bool,
        broken: Tensor | None,
    ) -> None:
        self._layouts, self._whole, self._learn, self._broken = layouts, whole, learn, broken
        self._readers: dict[int, OwnerReader] = {}
        self._unread: set[int] = set()
        self._verdicts: list[Verdict] = []
        # On a device verdicts are read after the pass. If one is not good, it runs again.
        is_elsewhere = not all(is_at_hand(each.grad) for each in whole)
        self._is_patient = is_elsewhere and broken is None

    def begin(self, seeds: Tensor, exponents: Sequence[int], base: int) -> None:
        """The next pass: losses times ``seeds``, powers of two with these exponents."""
        self._seeds, self._exponents, self._base = seeds, exponents, base
        self._verdicts = []

    def __call__(self, found: Arrival) -> None:
        place = len(self._verdicts)
        before = self._whole[place] if place < len(self._whole) else None
        is_alike: Verdict = before is not None and before.site.key == found.site.key
        if before is not None and is_alike and (self._is_patient or all(self._verdicts)):
            is_alike = self._compare(place, found, before.grad)
        self._verdicts.append(is_alike)

    def _compare(self, place: int, found: Arrival, whole: Tensor) -> Verdict:
        site = found.site
        is_read = place in self._readers or place in self._unread
        if not is_read and not site.asks_owners and site.key not in self._layouts.owned:
            fits = self._fits(found, whole)
            if self._is_patient:
                return fits
            if fits:
                return True
            if self._base > 1:  # the digits before this one were not read
                self._unread.add(place)
                return False
        reader = self._readers.setdefault(place, OwnerReader(site.dims))
        is_read = reader.read(found.grad, whole, self._exponents, self._base)
        return is_read or site.asks_owners  # an argument may be everybody's

    def _fits(self, found: Arrival, whole: Tensor) -> Verdict:
        """Whether some layout by one dimension is left."""
        site, grad, seeds = found.site, found.grad, self._seeds
        if self._learn:
            conclude = self._layouts.observe(site.key, grad, site.dims, seeds, whole)
            if self._is_patient:
                return Later(lambda: conclude() is not False)
            fits = conclude() is not False
            return fits and (self._broken is None or self._explains(site, whole))
        left = self._layouts.possible(site.key, grad.shape, site.dims, len(seeds))
        return any_of(negated(layout.is_refuted(grad, seeds, whole)) for layout in left)

    def _explains(self, site: Site, whole: Tensor) -> bool:
        """Whether rows that are not finite are those of broken samples in some layout left."""
        assert self._broken is not None
        if whole.isfinite().all():
            return True
        broken = self._broken.to(whole.device)
        left = self._layouts.possible(site.key, whole.shape, site.dims, len(broken))
        return any(bool((whole.isfinite() | broken[each.owner_of(whole)]).all()) for each in left)

    def is_to_be_read_again(self) -> bool:
        """Whether rows have to be asked for their owners that were not, from the beginning."""
        first = next((each for each in self._verdicts if not each), True)
        if self._is_patient and not isinstance(first, bool):
            self._is_patient = False
            self._readers.clear()
            return True
        # If one use of an operation has such rows, all uses are read.
        keys = {self._whole[place].site.key for place in self._readers}
        uses = {place for place, each in enumerate(self._whole) if each.site.key in keys}
        unread = (uses if self.holds else self._unread) - self._readers.keys()
        if unread:
            self._unread |= unread
            self._readers.clear()
        return bool(unread)

    @property
    def holds(self) -> bool:
        """Whether all that came are multiples, and all that should have come."""
        return len(self._verdicts) == len(self._whole) and all(self._verdicts)

    def settle(self, samples: Tensor) -> bool:
        """Let rows belong to their owners; False if one of them belongs to no sample."""
        for place, reader in self._readers.items():
            site = self._whole[place].site
            site.owners = reader.make_layout(samples)
            if site.owners is None and not site.asks_owners:
                return False
            if self._learn:
                self._layouts.note_owned(site.key)
        return True
