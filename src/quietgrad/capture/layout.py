"""Where the samples are in a tensor: learned from gradients, never guessed.

A captured operation sees a tensor in which some dimension runs over the samples, or over K rows
for each of B samples (flattened tokens, windows, views). Which one cannot be read off sizes: a
batch of 128 sequences of 128 tokens looks the same from both sides. A probe settles it: when only
some samples' losses are back-propagated, the gradient must be exactly zero in every row of every
other sample. Placements that this refutes are struck out; if none is left, samples are mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Placement:
    """Dimension ``dim`` holds ``B * K`` rows, those of a sample adjacent (major) or apart."""

    dim: int
    major: bool


@dataclass(frozen=True)
class Rows:
    """A placement bound to a batch: tells which rows of a tensor belong to which sample.

    ``placement`` is None for a batch of one, where every row belongs to the one sample.
    """

    placement: Placement | None
    batch: int

    def split(self, tensor: Tensor, trailing: int) -> Tensor:
        """``[B, K, *last trailing dims]``: all other dimensions become positions of a sample."""
        tail = tensor.shape[tensor.ndim - trailing :]
        if self.placement is None:
            return tensor.reshape(1, -1, *tail)
        rows = tensor.movedim(self.placement.dim, 0)
        if self.placement.major or rows.shape[0] == self.batch:
            return rows.reshape(self.batch, -1, *tail)
        lead = rows.reshape(-1, self.batch, *rows.shape[1:]).transpose(0, 1)
        return lead.reshape(self.batch, -1, *tail)

    def unbroadcast(self, tensor: Tensor, shape: torch.Size) -> Tensor:
        """Sum each sample's part of ``tensor`` to ``shape``, from which it was broadcast."""
        padded = (1,) * (tensor.ndim - len(shape)) + tuple(shape)
        if self.placement is None:
            return tensor.sum_to_size(padded).view(1, *shape)
        dim = self.placement.dim
        if padded[dim] != 1:
            return self._own_rows(tensor, dim, padded).reshape(self.batch, *shape)
        rest = (*padded[:dim], *padded[dim + 1 :])
        split = self._per_sample(tensor.movedim(dim, 0))
        return _sum_to(split.sum(1), rest).reshape(self.batch, *shape)

    def sample_of(self, rows: int, device: torch.device) -> Tensor:
        """The sample of each of ``rows`` rows."""
        samples = torch.arange(self.batch, device=device)
        each = rows // self.batch
        if self.placement is None or self.placement.major:
            return samples.repeat_interleave(each)
        return samples.repeat(each)

    def _per_sample(self, rows: Tensor) -> Tensor:
        """``[B * K, ...]`` as ``[B, K, ...]``."""
        assert self.placement is not None
        if self.placement.major:
            return rows.reshape(self.batch, -1, *rows.shape[1:])
        return rows.reshape(-1, self.batch, *rows.shape[1:]).transpose(0, 1)

    def _own_rows(self, tensor: Tensor, dim: int, padded: tuple[int, ...]) -> Tensor:
        """Gradients of a tensor that has the sample dimension itself: zero but for own rows."""
        rows = tensor.movedim(dim, 0)
        rows = _sum_to(rows, (*padded[:dim], *padded[dim + 1 :]))
        count = rows.shape[0]
        out = rows.new_zeros(self.batch, *rows.shape)
        out[self.sample_of(count, rows.device), torch.arange(count, device=rows.device)] = rows
        return out.movedim(1, dim + 1)


def _sum_to(tensor: Tensor, shape: Iterable[int]) -> Tensor:
    """Sum ``tensor[N, *dims]`` over those of its dims that are 1 in ``shape``."""
    dims = [i + 1 for i, size in enumerate(shape) if size == 1 and tensor.shape[i + 1] != 1]
    return tensor.sum(dims, keepdim=True) if dims else tensor


@dataclass(frozen=True)
class SiteKey:
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


class LayoutBook:
    """What probes have established about every operation of a model."""

    def __init__(self) -> None:
        self._survivors: dict[SiteKey, list[Placement]] = {}

    def knows(self, key: SiteKey) -> bool:
        """Whether a probe has seen gradients at this operation."""
        return key in self._survivors

    def possible(self, key: SiteKey, shape: torch.Size, dims: range, batch: int) -> list[Placement]:
        """The placements not struck out that fit ``shape``, one for each distinct mapping."""
        known = self._survivors.get(key) or _all_placements(dims)
        fitting = [p for p in known if shape[p.dim] % batch == 0 and shape[p.dim] > 0]
        return [p for p in fitting if p.major or shape[p.dim] != batch or _major(p) not in fitting]

    def observe(self, key: SiteKey, grad: Tensor, dims: range, seeded: Tensor) -> bool | None:
        """Strike out what this gradient refutes; False if nothing is left, None if it was silent.

        ``seeded[B]`` tells which samples' losses were back-propagated.
        """
        touched = grad.ne(0) & grad.eq(grad)  # a non-finite sample proves nothing
        if not touched.any():
            return None
        batch = len(seeded)
        known = self._survivors.get(key) or _all_placements(dims)
        left = [p for p in known if not refuted(p, touched, seeded, batch)]
        if left:
            self._survivors[key] = left
        else:
            self._survivors.pop(key, None)  # to be probed afresh: the loss may get mended
        return bool(left)


def _major(placement: Placement) -> Placement:
    return Placement(placement.dim, True)


def _all_placements(dims: range) -> list[Placement]:
    return [Placement(dim, major) for dim in dims for major in (True, False)]


def refuted(placement: Placement, touched: Tensor, seeded: Tensor, batch: int) -> bool:
    """Whether a row was touched that would belong to a sample whose loss was not seeded."""
    size = touched.shape[placement.dim]
    if size % batch:
        return True
    rows = touched.movedim(placement.dim, 0).reshape(size, -1).any(1)
    samples = Rows(placement, batch).sample_of(size, rows.device)
    return bool((rows & ~seeded[samples]).any())


class OutputRows:
    """One output of a model call, and where its samples can be after all probes so far.

    Args:
        output: as the model returned it.
        seeded: tells, while a probe runs, which samples' losses are back-propagated; None if none.
    """

    def __init__(self, output: Tensor, seeded: Callable[[], Tensor | None]) -> None:
        self._seeded = seeded
        self._touched: list[tuple[Tensor, Tensor]] = []
        self.is_probed = output.requires_grad
        if output.requires_grad:
            output.register_hook(self._observe)

    @property
    def was_reached(self) -> bool:
        """Whether a loss depends on it."""
        return bool(self._touched)

    def allows(self, place: Placement, batch: int) -> bool:
        """Whether no probe has shown that the samples are elsewhere."""
        return not any(
            place.dim >= touched.ndim or refuted(place, touched, seeded, batch)
            for touched, seeded in self._touched
        )

    def may_belong_to(self, sample: int) -> bool:
        """Whether no other sample's loss was seen to depend on it."""
        return all(bool(seeded[sample]) for _, seeded in self._touched)

    def holds_samples(self, batch: int) -> bool:
        """Whether probes have seen it fall apart into rows of single samples."""
        if not self._touched:
            return False
        dims = [d for d, size in enumerate(self._touched[0][0].shape) if size % batch == 0]
        places = [Placement(dim, major) for dim in dims for major in (True, False)]
        return any(self.allows(place, batch) for place in places)

    def _observe(self, grad: Tensor) -> None:
        seeded = self._seeded()
        if seeded is not None and grad is not None:
            touched = grad.ne(0) & grad.eq(grad)  # a non-finite sample proves nothing
            if touched.any():
                self._touched.append((touched, seeded))
