"""The batch dimension of a tensor: learned from gradients, never guessed.

A captured operation sees a tensor in which some dimension runs over the samples, or over K rows
for each of B samples (flattened tokens, windows, views). Which one cannot be read off sizes: a
batch of 128 sequences of 128 tokens looks the same from both sides. A probe settles it: when
samples' losses are multiplied by constants, every row of the gradient must be multiplied by that of
its own sample: by zero exactly, and by powers of two to the last bit. Layouts that this refutes are
struck out; if none is left, samples are mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from quietgrad.capture.compare import has_digits
from quietgrad.factors.base import (
    Verdict,
    all_of,
    any_of,
    is_at_hand,
    is_surely_equal,
    negated,
    send,
    verdict_of,
)

_MOST_REMEMBERED = 1 << 14  # lengths of texts may be others in every batch


@dataclass(frozen=True)
class Layout:
    """Dimension ``dim`` holds ``B * K`` rows, those of a sample adjacent (major) or apart.

    In a batch of one every row belongs to the one sample, whatever the dimension.
    """

    batch: int
    dim: int = 0
    major: bool = True

    def split(self, tensor: Tensor, trailing: int) -> Tensor:
        """``[B, K, *last trailing dims]``: all other dimensions become positions of a sample."""
        if not self.dim and tensor.ndim == trailing + 2 and tensor.shape[0] == self.batch:
            return tensor
        lead, tail = tensor.shape[: tensor.ndim - trailing], tensor.shape[tensor.ndim - trailing :]
        each = lead.numel() // self.batch
        if self.batch == 1:
            return tensor.reshape(1, each, *tail)
        rows = tensor.movedim(self.dim, 0) if self.dim else tensor
        if self.major or rows.shape[0] == self.batch:
            return rows.reshape(self.batch, each, *tail)
        return self._by_sample(rows).reshape(self.batch, each, *tail)

    def sum_positions(self, tensor: Tensor, trailing: int) -> Tensor:
        """``[B, *last trailing dims]``: the sum over a sample's positions, if it has several."""
        rows = self.split(tensor, trailing)
        return rows.squeeze(1) if rows.shape[1] == 1 else rows.sum(1)

    def unbroadcast(self, tensor: Tensor, shape: torch.Size) -> Tensor:
        """Sum each sample's part of ``tensor`` to ``shape``, from which it was broadcast."""
        padded = (1,) * (tensor.ndim - len(shape)) + tuple(shape)
        if self.batch == 1:
            return tensor.sum_to_size(padded).view(1, *shape)
        rows, rest = tensor.movedim(self.dim, 0), padded[: self.dim] + padded[self.dim + 1 :]
        if padded[self.dim] == 1:
            return _sum_to(self._by_sample(rows).sum(1), rest).reshape(self.batch, *shape)
        # The tensor has the batch dimension itself: its gradients are zero but for a sample's rows.
        rows = _sum_to(rows, rest)
        out = rows.new_zeros(self.batch, *rows.shape)
        count, device = len(rows), rows.device
        out[self.sample_of(count, device), torch.arange(count, device=device)] = rows
        return out.movedim(1, self.dim + 1).reshape(self.batch, *shape)

    def select(self, tensor: Tensor, samples: Tensor) -> Tensor:
        """The rows of some samples, in their order."""
        each = tensor.shape[self.dim] // self.batch
        numbers = torch.arange(each * self.batch, device="cpu")
        rows = numbers.view(self.batch, -1) if self.major else numbers.view(-1, self.batch).T
        chosen = rows[samples] if self.major else rows[samples].T
        return tensor.index_select(self.dim, send(chosen.flatten(), tensor.device))

    def sample_of(self, rows: int, device: torch.device) -> Tensor:
        """The sample of each of ``rows`` rows."""
        samples, each = torch.arange(self.batch, device=device), rows // self.batch
        return samples.repeat_interleave(each) if self.major else samples.repeat(each)

    def owner_of(self, like: Tensor) -> Tensor:
        """The sample of each entry of ``like``, in a shape that can be broadcast to its own."""
        shape = [1] * like.ndim
        shape[self.dim] = like.shape[self.dim]
        return self.sample_of(shape[self.dim], like.device).view(shape)

    def spread(self, factors: Tensor, like: Tensor) -> Tensor:
        """One factor for each sample as a tensor to multiply ``like`` with."""
        return send(factors, like.device, like.dtype)[self.owner_of(like)]

    def is_refuted(self, grad: Tensor, seeds: Tensor, whole: Tensor | None = None) -> Verdict:
        """Whether this gradient of losses times ``seeds[B]`` cannot be if rows lie like this.

        Rows of samples whose seed is zero must be zero. With ``whole``, the gradient of the losses
        themselves, every row must be that one times its sample's seed, a power of two.
        """
        if grad.shape[self.dim] % self.batch:
            return True
        by_row = self.spread(seeds, grad)
        if whole is None:
            return verdict_of((by_row.eq(0) & _find_touched(grad)).any())
        return negated(is_multiple(grad, whole, by_row))

    def _by_sample(self, rows: Tensor) -> Tensor:
        """``[B * K, ...]`` as ``[B, K, ...]``."""
        if self.major:
            return rows.reshape(self.batch, -1, *rows.shape[1:])
        return rows.reshape(-1, self.batch, *rows.shape[1:]).transpose(0, 1)


def _sum_to(tensor: Tensor, shape: Iterable[int]) -> Tensor:
    """Sum ``tensor[N, *dims]`` over those of its dims that are 1 in ``shape``."""
    dims = [i + 1 for i, size in enumerate(shape) if size == 1 and tensor.shape[i + 1] != 1]
    return tensor.sum(dims, keepdim=True) if dims else tensor


def counts_up(tensor: Tensor) -> bool:
    """Whether it is made of numbers of positions, one after the other."""
    is_counting = not has_digits(tensor) and tensor.dtype != torch.bool
    return is_counting and bool((tensor.flatten().diff() == 1).all())


def exact_layouts(tensor: Tensor, batch: int) -> list[Layout]:
    """Dimensions of the size of the batch."""
    return [Layout(batch, dim) for dim, size in enumerate(tensor.shape) if size == batch]


def folded_layouts(tensor: Tensor, batch: int) -> list[Layout]:
    """Dimensions that could hold several rows of each sample, adjacent or apart."""
    multiples = [dim for dim, size in enumerate(tensor.shape) if size > batch and size % batch == 0]
    return [Layout(batch, dim, major) for dim in multiples for major in (True, False)]


def possible_layouts(tensor: Tensor, batch: int) -> list[Layout]:
    """All of these."""
    return exact_layouts(tensor, batch) + folded_layouts(tensor, batch)


class SiteKey(NamedTuple):
    """One operation on some parameters in one module: its layout is the same whenever it runs."""

    path: str
    operation: str
    parameters: str
    ordinal: int
    label: str
    ndim: int

    def __str__(self) -> str:
        where = f"module '{self.path}'" if self.path else "the model's own forward"
        return f"{self.operation} in {where}"


class LayoutTable:
    """What probes have established about every operation of a model, in batches of any size.

    Attributes:
        owned: operations whose rows were seen to belong to samples in another way than by one
            dimension. They are probed in every pass.
        changes: how often something was struck out, or found to be owned.
    """

    def __init__(self) -> None:
        self.owned: set[SiteKey] = set()
        self.changes = 0
        self._survivors: dict[SiteKey, list[tuple[int, bool]]] = {}
        self._possible: dict[tuple[SiteKey, torch.Size, range, int], list[Layout]] = {}

    def knows(self, key: SiteKey) -> bool:
        """Whether a probe has seen gradients at this operation."""
        return key in self._survivors or key in self.owned

    def note_owned(self, key: SiteKey) -> None:
        """The rows of this operation belong to samples in another way than by one dimension."""
        self.owned.add(key)
        self.changes += 1

    def possible(self, key: SiteKey, shape: torch.Size, dims: range, batch: int) -> list[Layout]:
        """The layouts not struck out that fit ``shape``, one for each distinct mapping."""
        known = self._possible.get((key, shape, dims, batch))
        if known is None:
            if len(self._possible) >= _MOST_REMEMBERED:
                self._possible.clear()
            known = self._find_possible(key, shape, dims, batch)
            self._possible[key, shape, dims, batch] = known
        return known

    def _find_possible(
        self, key: SiteKey, shape: torch.Size, dims: range, batch: int
    ) -> list[Layout]:
        fitting = [
            (dim, major)
            for dim, major in self._left(key, dims)
            if shape[dim] % batch == 0 and shape[dim] > 0
        ]
        return [
            Layout(batch, dim, major)
            for dim, major in fitting
            if major or shape[dim] != batch or (dim, True) not in fitting
        ]

    def observe(
        self, key: SiteKey, grad: Tensor, dims: range, seeds: Tensor, whole: Tensor | None = None
    ) -> Callable[[], bool | None]:
        """Look at a gradient; what is returned strikes out what it refutes.

        That gives False if nothing is left, None if the gradient was silent. Losses were multiplied
        by ``seeds[B]``; see :meth:`Layout.is_refuted`.
        """
        is_touched = verdict_of(_find_touched(grad if whole is None else whole).any())
        is_other: Verdict = False
        if whole is not None and is_touched is not True:
            is_other = verdict_of(_find_touched(grad).any())
        refuted = {
            (dim, major): Layout(len(seeds), dim, major).is_refuted(grad, seeds, whole)
            for dim, major in self._left(key, dims)
            if is_touched is not False
        }
        is_strict = whole is not None

        def conclude() -> bool | None:
            if not is_touched:
                return False if is_other else None
            left = [each for each in self._left(key, dims) if not refuted[each]]
            if left != self._survivors.get(key):
                self._possible.clear()
                self.changes += 1
            if left:
                self._survivors[key] = left
            elif not is_strict:
                self._survivors.pop(key, None)  # to be probed afresh: the loss may get fixed
            return bool(left)

        return conclude

    def _left(self, key: SiteKey, dims: range) -> list[tuple[int, bool]]:
        return self._survivors.get(key) or [(d, major) for d in dims for major in (True, False)]


def _find_touched(grad: Tensor) -> Tensor:
    return grad.ne(0) & grad.eq(grad)  # a non-finite sample proves nothing


def is_multiple(grad: Tensor, whole: Tensor, factors: Tensor | float) -> Verdict:
    """Whether a gradient is another one times powers of two, to the last bit.

    Entries may differ by what is lost in numbers too small to have all their digits.
    """
    if grad.shape != whole.shape:
        return False
    expected = whole * factors
    if is_surely_equal(grad, expected):
        return True
    sizes = factors.abs() if isinstance(factors, Tensor) else abs(factors)
    lost = 2.0**26 * torch.finfo(grad.dtype).tiny * sizes
    is_near = (grad - expected).abs().le(lost) | grad.eq(expected)
    return verdict_of((is_near | ~whole.isfinite()).all())


@dataclass(frozen=True)
class Probe:
    """A backward pass of losses times ``seeds[B]``, to see which rows they reach.

    Attributes:
        seeds: by sample, on the host.
        is_strict: whether gradients must be these multiples of those of the whole batch; if not,
            only zeros are looked at.
    """

    seeds: Tensor
    is_strict: bool = False

    @cached_property
    def is_whole(self) -> bool:
        """Whether all losses are back-propagated unchanged."""
        return bool((self.seeds == 1).all())


class _Evidence:
    """A gradient that a probe sent to an output, of which it may be unknown yet whether it tells.

    Attributes:
        is_touched: whether there was a gradient at all; otherwise it tells nothing.
        grad: the gradient.
        seeds: of the probe.
        whole: the gradient of the whole batch, if the probe was a strict one.
    """

    def __init__(
        self, is_touched: Verdict, grad: Tensor, seeds: Tensor, whole: Tensor | None
    ) -> None:
        self.is_touched, self.grad, self.seeds, self.whole = is_touched, grad, seeds, whole
        self._refuted: dict[Layout, Verdict] = {}
        if not is_at_hand(grad):  # to be read with what the probe tells of other places
            for layout in possible_layouts(grad, len(seeds)):
                self.allows(layout)

    def allows(self, layout: Layout) -> Verdict:
        """Whether it does not show that the samples are elsewhere."""
        if layout not in self._refuted:
            fits = layout.dim < self.grad.ndim
            is_refuted = layout.is_refuted(self.grad, self.seeds, self.whole) if fits else True
            self._refuted[layout] = any_of((negated(self.is_touched), negated(is_refuted)))
        return self._refuted[layout]


class OutputLayout:
    """One output of a model call, and where its samples can be after all probes so far.

    Args:
        output: as the model returned it.
        probe: the one that runs; None if none does.

    Attributes:
        gradient: of all losses, as a probe of the whole batch found it; None if there is none.
        is_before_hooks: whether this is the gradient before the hooks that the model put on the
            output. It is the one behind them if the loop has put others on it.
        is_mixed: whether other samples were seen to change it, and no loss to depend on it.
        is_direct: whether losses are made of it itself, and not only of others computed of it.
    """

    def __init__(self, output: Tensor, probe: Callable[[], Probe | None]) -> None:
        self._probe = probe
        self._found: list[_Evidence] = []
        self.gradient: Tensor | None = None
        self.is_probed = output.requires_grad
        self.is_before_hooks = False
        self.is_mixed: Verdict = False
        self.is_direct = True
        self._raw: Tensor | None = None
        self._behind_own_hooks: Tensor | None = None
        if output.grad_fn is not None:
            if output._backward_hooks:
                add_first_hook(output, partial(setattr, self, "_raw"))
                output.register_hook(partial(setattr, self, "_behind_own_hooks"))
            # What enters the model's own graph, behind hooks that the loop may register later.
            place = output.output_nr
            output.grad_fn.register_prehook(lambda grads: self._observe(grads[place]))
        elif output.requires_grad:
            output.register_hook(self._observe)

    @property
    def _evidence(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        """Gradients that tell something, their seeds, and those of the whole batch."""
        self._found = [found for found in self._found if found.is_touched]
        return [(each.grad, each.seeds, each.whole) for each in self._found]

    @property
    def was_reached(self) -> bool:
        """Whether a loss depends on it."""
        return bool(self._evidence)

    @property
    def strict_evidence(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Gradients, seeds and gradients of the whole batch, of probes by powers of two."""
        return [(grad, seeds, whole) for grad, seeds, whole in self._evidence if whole is not None]

    def allows(self, layout: Layout) -> Verdict:
        """Whether no probe has shown that the samples are elsewhere."""
        return all_of(each.allows(layout) for each in self._found)

    def may_belong_to(self, sample: int) -> bool:
        """Whether no other sample's loss was seen to depend on it."""
        return all(
            bool(seeds[sample]) if whole is None else is_multiple(grad, whole, float(seeds[sample]))
            for grad, seeds, whole in self._evidence
        )

    def holds_samples(self, batch: int) -> bool:
        """Whether probes have seen it fall apart into rows of single samples."""
        if not self._evidence:
            return False
        layouts = possible_layouts(self._evidence[0][0], batch)
        return bool(any_of(map(self.allows, layouts)))

    def forget(self) -> None:
        """Drop what strict probes have shown: another kind of probes follows."""
        self._found.clear()

    def _observe(self, grad: Tensor | None) -> None:
        probe = self._probe()
        if probe is None or grad is None:
            return
        if probe.is_whole:
            raw, own = self._raw, self._behind_own_hooks
            self.is_before_hooks = raw is not None and own is not None and torch.equal(own, grad)
            chosen = raw if self.is_before_hooks and raw is not None else grad
            self.gradient = chosen.detach()
            return
        found = self._raw if self.is_before_hooks and self._raw is not None else grad
        whole = self.gradient if probe.is_strict else None
        if probe.is_strict and whole is None:
            return
        is_touched = verdict_of(_find_touched(found if whole is None else whole).any())
        if is_touched is not False:
            self._found.append(_Evidence(is_touched, found.detach(), probe.seeds, whole))


def add_first_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> None:
    """Register a hook that sees, or replaces, the gradient before all others."""
    own = tensor.register_hook(hook).id
    hooks = tensor._backward_hooks
    assert hooks is not None
    others = {key: each for key, each in hooks.items() if key != own}
    first = hooks[own]
    hooks.clear()
    hooks.update({own: first} | others)
