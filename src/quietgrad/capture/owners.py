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

from quietgrad.capture.choice import on_all, on_any, random_order
from quietgrad.capture.compare import has_digits
from quietgrad.capture.layout import Layout, is_multiple
from quietgrad.factors.base import (
    Later,
    Verdict,
    all_of,
    any_of,
    is_at_hand,
    negated,
    send,
    verdict_of,
)
from quietgrad.factors.routed import count_owners, list_slots, sizes_of_slots

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

    owners: Tensor = field(default_factory=lambda: torch.zeros((), device="cpu"))
    dims: tuple[int, ...] = ()
    is_touched: Tensor = field(
        default_factory=lambda: torch.ones((), dtype=torch.bool, device="cpu")
    )
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

    def has_unowned(self, tensor: Tensor) -> Verdict:
        """Whether something that is not finite stands where there is no gradient."""
        depth, finite = self._depth, tensor.isfinite()
        if tensor.shape[:depth] != self.is_touched.shape:
            return verdict_of(~finite.all())
        finite = finite.flatten(depth).all(-1) if tensor.ndim > depth else finite
        return verdict_of(~(finite | self.is_touched).all())

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
        is_owned = self.owners.flatten() != _NOBODY
        rows = rows.where(is_owned.view(-1, *[1] * (rows.ndim - 1)), 0)
        out.index_add_(0, places.where(is_owned, 0), rows)
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
        rows = rows[send(slots[slots < len(rows)], rows.device)]
        return rows.movedim(0, self.dims[0]) if len(self.dims) == 1 else rows

    def replace(self, tensor: Tensor, samples: Tensor) -> Tensor:
        """The tensor with rows of sample ``i`` replaced by rows of ``samples[i]``, in turn."""
        owners = self.owners.flatten().cpu()
        sources = torch.arange(len(owners), device="cpu")
        for place, sample in enumerate(samples.tolist()):
            mine, others = ((owners == each).nonzero().flatten() for each in (place, sample))
            if place != sample and len(others):
                sources[mine] = others[torch.arange(len(mine), device="cpu") % len(others)]
        if not self.dims:
            return tensor.clone()
        rows = self.rows_of(tensor)[send(sources, tensor.device)]
        rows = rows.view(*self.owners.shape, *rows.shape[1:])
        return rows.movedim(tuple(range(len(self.dims))), self.dims).contiguous()

    @staticmethod
    def of(layout: Layout, shape: torch.Size, device: torch.device | str = "cpu") -> OwnedLayout:
        """A layout by one dimension in the same form, for tensors of this shape."""
        if isinstance(layout, OwnedLayout):
            return layout
        owners = layout.sample_of(shape[layout.dim], torch.device(device))
        is_touched = torch.ones((), dtype=torch.bool, device=device)
        return OwnedLayout(layout.batch, owners=owners, dims=(layout.dim,), is_touched=is_touched)

    def reshape(self, shape: torch.Size) -> OwnedLayout | None:
        """The same rows in the leading dimensions of another tensor; None if they do not fit."""
        count = self.owners.numel()
        for depth in range(len(shape) + 1):
            if shape[:depth].numel() == count and (depth == len(shape) or shape[depth] != 1):
                owners, dims = self.owners.reshape(shape[:depth]), tuple(range(depth))
                return OwnedLayout(self.batch, owners=owners, dims=dims)
        return None

    @property
    def keeps_places(self) -> Verdict:
        """Whether rows in a dimension as long as the batch belong to the samples in their order."""
        places = torch.arange(self.batch, device=self.owners.device)
        verdicts = list[Verdict]()
        for dim, size in enumerate(self.owners.shape):
            shape = [self.batch if each == dim else 1 for each in range(self.owners.ndim)]
            if size != self.batch:
                continue
            is_own = (self.owners == _NOBODY) | (self.owners == places.view(shape))
            verdicts.append(verdict_of(is_own.all()))
        return all_of(verdicts)

    @property
    def is_ragged(self) -> bool:
        """Whether there is not one row for each sample, nor as many side by side or in turn."""
        owners = self.owners.flatten().cpu()
        if len(owners) % self.batch:
            return True
        each = len(owners) // self.batch
        places = torch.arange(self.batch, device="cpu")
        regular = places.repeat_interleave(each), places.repeat(each)
        return not any(bool(((owners == r) | (owners == _NOBODY)).all()) for r in regular)

    def arrange(self, samples: Tensor) -> OwnedLayout:
        """The layout of the same rows when place ``i`` holds sample ``samples[i]``.

        Where those of a sample are not adjacent, in the order of samples, it stays what it is.
        """
        if not self.is_in_order:
            return self
        counts = torch.bincount(self.owners.flatten(), minlength=self.batch)
        owners = torch.arange(len(samples), device="cpu").repeat_interleave(counts.cpu()[samples])
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

    @property
    def is_usual(self) -> bool:
        """Whether rows come in an order in which samples are joined.

        One after the other, in turn, or step by step with fewer samples in later steps.
        """
        told = self.owners.flatten()
        told = told[told != _NOBODY]
        is_sorted = bool((told[1:] >= told[:-1]).all())
        return is_sorted or not self.is_ragged or self._is_by_steps

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
        return list_slots(self.owners.flatten(), self.batch, self._sizes)

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """How many rows are nobody's, and the most of one sample."""
        read_sizes([self])
        return self._sizes


def read_sizes(layouts: Sequence[OwnedLayout]) -> None:
    """Of all these at once, so that a device is waited for once."""
    by_device: dict[torch.device, list[OwnedLayout]] = {}
    for layout in layouts:
        by_device.setdefault(layout.owners.device, []).append(layout)
    for some in by_device.values():
        counts = [count_owners(layout.owners.flatten(), layout.batch) for layout in some]
        found = torch.stack([*map(sizes_of_slots, counts)]).tolist()
        for layout, sizes in zip(some, found, strict=True):
            vars(layout)["_sizes"] = tuple(sizes)


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
        self._left: dict[tuple[int, ...], tuple[Tensor, Verdict]] | None = None
        self._dims = dims
        self._is_touched: Tensor | None = None

    def read(self, grad: Tensor, whole: Tensor, exponents: Sequence[int], base: int) -> Verdict:
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
        found: dict[tuple[int, ...], tuple[Tensor, Verdict]] = {}
        for dims in list_row_dims(len(self._dims)) if self._left is None else self._left:
            digits, is_told = _read_digits(powers, dims, exponents)
            if is_told is not False:
                are_multiples = _are_multiples(grad, whole, dims, digits, exponents)
                is_told = all_of((is_told, are_multiples))
            if self._left is not None:
                before, was_told = self._left[dims]
                digits = torch.where(digits == _NOBODY, digits, before + base * digits)
                is_told = all_of((was_told, is_told))
            if is_told is not False:
                found[dims] = digits, is_told
        self._left = found
        return any_of(is_told for _, is_told in found.values())

    def make_layout(self, samples: Tensor) -> OwnedLayout | None:
        """Rows by their owners, if all have one; ``samples`` are in the order of the codes."""
        for dims, (codes, is_told) in (self._left or {}).items():
            # A digit of one pass is that of a sample.
            are_samples = len(samples) <= _CODES or not codes.numel() or codes.max() < len(samples)
            if is_told and are_samples:
                owners = send(samples, codes.device).take(codes.clamp_min(0))
                owners = owners.where(codes != _NOBODY, _NOBODY)
                assert self._is_touched is not None
                return OwnedLayout(
                    len(samples), owners=owners, dims=dims, is_touched=self._is_touched
                )
        return None


def match_rows(evidence: Sequence[tuple[Tensor, Tensor, Tensor]], batch: int) -> OwnedLayout | None:
    """Owners of a tensor's rows by passes of gradients, seeds and gradients of the whole batch.

    Rows are those of the first dimension, or of the second if there is one of the first. None if
    some row has several owners.
    """
    layout, is_told = ask_rows(evidence, batch)
    return layout if is_told else None


def ask_rows(
    evidence: Sequence[tuple[Tensor, Tensor, Tensor]], batch: int
) -> tuple[OwnedLayout, Verdict]:
    """The same, and whether no row has several owners: only then the layout means something."""
    first = evidence[0][0]
    if not first.ndim:
        return OwnedLayout(batch), False
    dim = 1 if first.ndim > 1 and first.shape[0] == 1 else 0
    fits, is_touched = None, None
    verdicts = list[Verdict]()
    for grad, seeds, whole in evidence:
        powers = _find_powers(grad, whole).movedim(dim, 0).reshape(grad.shape[dim], -1)
        lowest, highest = powers.nan_to_num(torch.inf), powers.nan_to_num(-torch.inf)
        lowest, highest = lowest.amin(1), highest.amax(1)
        is_touched = highest.isfinite() if is_touched is None else is_touched & highest.isfinite()
        verdicts.append(verdict_of((lowest.eq(highest) | ~is_touched).all()))
        same = highest[:, None] == send(seeds, highest.device, highest.dtype).log2().round()
        fits = same if fits is None else fits & same
    assert fits is not None
    assert is_touched is not None
    verdicts.append(verdict_of((fits.sum(1).eq(1) | ~is_touched).all()))
    owners = fits.int().argmax(1).where(is_touched, _NOBODY)
    layout = OwnedLayout(batch, owners=owners, dims=(dim,), is_touched=is_touched)
    return layout, all_of(verdicts)


def _peaks(tensor: Tensor, depth: int) -> Tensor:
    """The largest entry of each row in the leading dimensions; a power of two changes none else."""
    sizes = tensor.abs()
    if tensor.ndim == depth:
        return sizes
    if not sizes.numel():
        return sizes.new_zeros(sizes.shape[:depth])
    return sizes.nan_to_num(0.0, 0.0, 0.0).flatten(depth).amax(-1)


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


def _read_digits(
    powers: Tensor, dims: tuple[int, ...], exponents: Sequence[int]
) -> tuple[Tensor, Verdict]:
    """The digit of each row; and whether there is one in every row, and all are of these powers."""
    others = [dim for dim in range(powers.ndim) if dim not in dims]
    if not powers.numel():
        sizes = [powers.shape[dim] for dim in dims]
        return torch.full(sizes, _NOBODY, device=powers.device), True
    lowest, highest = powers.nan_to_num(torch.inf), powers.nan_to_num(-torch.inf)
    if others:
        lowest, highest = lowest.amin(others), highest.amax(others)
    is_touched = highest.isfinite()
    apart = exponents[1] - exponents[0] if len(exponents) > 1 else 1
    digits = (highest - exponents[0]) / apart
    is_known = (digits >= 0) & (digits < len(exponents)) & digits.eq(digits.round())
    digits = digits.where(is_touched & is_known, _NOBODY).long()
    return digits, verdict_of((~is_touched | (lowest.eq(highest) & is_known)).all())


def _are_multiples(
    grad: Tensor, whole: Tensor, dims: tuple[int, ...], digits: Tensor, exponents: Sequence[int]
) -> Verdict:
    """Whether rows are multiples, to the last bit, and those of nobody are next to nothing."""
    real = grad.real.dtype if grad.is_complex() else grad.dtype
    factors = send(torch.tensor([2.0**e for e in exponents], dtype=real, device="cpu"), grad.device)
    shape = [grad.shape[dim] if dim in dims else 1 for dim in range(grad.ndim)]
    by_row = factors.take(digits.clamp_min(0)).view(shape)  # an index of one would be read
    if is_at_hand(digits) and not (digits == _NOBODY).any():
        return is_multiple(grad, whole, by_row)
    is_owned = (digits != _NOBODY).view(shape)
    nothing = _smallest_told(whole)
    is_nobodys = ~is_owned & whole.isfinite()
    is_nothing = whole.abs().le(nothing) & grad.abs().le(nothing * 2.0 ** max(exponents))
    is_rest_nothing = verdict_of((is_nothing | ~is_nobodys).all())
    own = is_multiple(grad.where(is_owned, 0), whole.where(is_owned, 0), by_row)
    return all_of((is_rest_nothing, own))


Run = Callable[[Tensor, Callable[["Arrival"], object]], None]
"""Back-propagates losses times seeds, one for each sample, and lets arrivals be observed."""


def read_powers(
    layouts: LayoutTable,
    batch: int,
    whole: Sequence[Arrival],
    run: Run,
    *,
    learn: bool = True,
    broken: Tensor | None = None,
) -> bool:
    """Whether all gradients scale with their sample's loss; rows that need it get their owners.

    Args:
        layouts: by one dimension.
        batch: the number of samples.
        whole: the gradients of all losses.
        run: a further pass.
        learn: whether it is remembered which layouts do not fit. It is not in repeats.
        broken: the samples ``[B]`` whose losses are not finite, if rows may be anywhere: rows that
            are not finite must then be theirs.
    """
    codes, comparison = _Codes(batch), _Multiples(layouts, whole, learn=learn, broken=broken)
    while True:
        for power, seeds in enumerate(codes.seeds()):
            comparison.begin(seeds, codes.exponents, _CODES**power)
            run(seeds, comparison)
            if not on_all(comparison.holds):
                break
        if not on_any(comparison.is_to_be_read_again())[0]:
            return on_all(comparison.holds and comparison.settle(codes.samples))
        comparison.forget()


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
        left, powers = self._codes, torch.tensor(self.exponents, device="cpu").double().exp2()
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
        # On a device verdicts are read after the pass. If one is not good, it runs again, in which
        # the rows that fit no layout are asked for their owners.
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
        is_asked = place in self._readers or place in self._unread
        if not is_asked and not site.asks_owners and site.key not in self._layouts.owned:
            fits = self._fits(found, whole)
            if self._is_patient:
                return fits
            if fits:
                return True
            if self._base > 1:  # the digits before this one were not read
                self._unread.add(place)
                return False
        reader = self._readers.setdefault(place, OwnerReader(site.dims))
        is_told = reader.read(found.grad, whole, self._exponents, self._base)
        return any_of((site.asks_owners, is_told))  # an argument may be everybody's

    def _fits(self, found: Arrival, whole: Tensor) -> Verdict:
        """Whether some layout by one dimension is left."""
        site, grad, seeds = found.site, found.grad, self._seeds
        left = self._layouts.possible(site.key, grad.shape, site.dims, len(seeds))
        if self._learn:
            # Of what is nothing but NaN nothing is seen, and yet it has to be somebody's.
            is_lost = False if left else verdict_of(whole.isnan().any())
            conclude = self._layouts.observe(site.key, grad, site.dims, seeds, whole)

            def fits() -> bool:
                told = conclude()
                return not is_lost if told is None else told

            if self._is_patient:
                return Later(fits)
            return fits() and (self._broken is None or self._explains(site, whole))
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
        was_asked = set[int]()
        if self._is_patient:
            was_asked = self._unread | self._readers.keys()
            pairs = zip(range(len(self._whole)), self._verdicts, strict=False)
            self._unread |= {place for place, fits in pairs if not fits}
        # If one use of an operation has such rows, all uses are read.
        keys = {self._whole[place].site.key for place in self._readers}
        uses = {place for place, each in enumerate(self._whole) if each.site.key in keys}
        unread = (uses if self.holds else self._unread) - self._readers.keys() - was_asked
        self._unread |= unread
        return bool(unread)

    def forget(self) -> None:
        """What was read; those that were asked for their owners are asked again."""
        self._unread |= self._readers.keys()
        self._readers.clear()

    @property
    def holds(self) -> bool:
        """Whether all that came are multiples, and all that should have come."""
        return len(self._verdicts) == len(self._whole) and all(self._verdicts)

    def settle(self, samples: Tensor) -> bool:
        """Let rows belong to their owners; False if one of them belongs to no sample."""
        found = list[OwnedLayout]()
        for place, reader in self._readers.items():
            site = self._whole[place].site
            site.owners = reader.make_layout(samples)
            if site.owners is None and not site.asks_owners:
                return False
            found += [] if site.owners is None else [site.owners]
            if self._learn:
                self._layouts.note_owned(site.key)
        if self._is_patient:
            read_sizes(found)
        return True
