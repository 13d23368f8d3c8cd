"""The batch dimension of a tensor: learned from gradients, never guessed.

A captured operation sees a tensor in which some dimension runs over the samples, or over K rows
for each of B samples (flattened tokens, windows, views). Which one cannot be read off sizes: a
batch of 128 sequences of 128 tokens looks the same from both sides. A probe settles it: when only
some samples' losses are back-propagated, the gradient must be exactly zero in every row of every
other sample. Layouts that this refutes are struck out; if none is left, samples are mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


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
        tail = tensor.shape[tensor.ndim - trailing :]
        if self.batch == 1:
            return tensor.reshape(1, -1, *tail)
        rows = tensor.movedim(self.dim, 0)
        if self.major or rows.shape[0] == self.batch:
            return rows.reshape(self.batch, -1, *tail)
        return self._by_sample(rows).reshape(self.batch, -1, *tail)

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
        numbers = torch.arange(each * self.batch)
        rows = numbers.view(self.batch, -1) if self.major else numbers.view(-1, self.batch).T
        chosen = rows[samples] if self.major else rows[samples].T
        return tensor.index_select(self.dim, chosen.flatten().to(tensor.device))

    def sample_of(self, rows: int, device: torch.device) -> Tensor:
        """The sample of each of ``rows`` rows."""
        samples, each = torch.arange(self.batch, device=device), rows // self.batch
        return samples.repeat_interleave(each) if self.major else samples.repeat(each)

    def is_refuted(self, touched: Tensor, seeded: Tensor) -> bool:
        """Whether a row was touched that would belong to a sample whose loss was not seeded."""
        size = touched.shape[self.dim]
        if size % self.batch:
            return True
        rows = touched.movedim(self.dim, 0).reshape(size, -1).any(1)
        return bool((rows & ~seeded[self.sample_of(size, rows.device)]).any())

    def _by_sample(self, rows: Tensor) -> Tensor:
        """``[B * K, ...]`` as ``[B, K, ...]``."""
        if self.major:
            return rows.reshape(self.batch, -1, *rows.shape[1:])
        return rows.reshape(-1, self.batch, *rows.shape[1:]).transpose(0, 1)


def _sum_to(tensor: Tensor, shape: Iterable[int]) -> Tensor:
    """Sum ``tensor[N, *dims]`` over those of its dims that are 1 in ``shape``."""
    dims = [i + 1 for i, size in enumerate(shape) if size == 1 and tensor.shape[i + 1] != 1]
    return tensor.sum(dims, keepdim=True) if dims else tensor


def exact_layouts(tensor: Tensor, batch: int) -> list[Layout]:
    """Dimensions of the size of the batch."""
    return [Layout(batch, dim) for dim, size in enumerate(tensor.shape) if size == batch]


def folded_layouts(tensor: Tensor, batch: int) -> list[Layout]:
    """Dimensions that could hold several rows of each sample, adjacent or apart."""
    multiples = [dim for dim, size in enumerate(tensor.shape) if size > batch and size % batch == 0]
    return [Layout(batch, dim, major) for dim in multiples for major in (True, False)]


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


class LayoutTable:
    """What probes have established about every operation of a model, in batches of any size."""

    def __init__(self) -> None:
        self._survivors: dict[SiteKey, list[tuple[int, bool]]] = {}

    def knows(self, key: SiteKey) -> bool:
        """Whether a probe has seen gradients at this operation."""
        return key in self._survivors

    def possible(self, key: SiteKey, shape: torch.Size, dims: range, batch: int) -> list[Layout]:
        """The layouts not struck out that fit ``shape``, one for each distinct mapping."""
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

    def observe(self, key: SiteKey, grad: Tensor, dims: range, seeded: Tensor) -> bool | None:
        """Strike out what this gradient refutes; False if nothing is left, None if it was silent.

        ``seeded[B]`` tells which samples' losses were back-propagated.
        """
        touched = _find_touched(grad)
        if not touched.any():
            return None
        left = [
            (dim, major)
            for dim, major in self._left(key, dims)
            if not Layout(len(seeded), dim, major).is_refuted(touched, seeded)
        ]
        if left:
            self._survivors[key] = left
        else:
            self._survivors.pop(key, None)  # to be probed afresh: the loss may get fixed
        return bool(left)

    def _left(self, key: SiteKey, dims: range) -> list[tuple[int, bool]]:
        return self._survivors.get(key) or [(d, major) for d in dims for major in (True, False)]


def _find_touched(grad: Tensor) -> Tensor:
    return grad.ne(0) & grad.eq(grad)  # a non-finite sample proves nothing


class OutputLayout:
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

    def allows(self, layout: Layout) -> bool:
        """Whether no probe has shown that the samples are elsewhere."""
        return not any(
            layout.dim >= touched.ndim or layout.is_refuted(touched, seeded)
            for touched, seeded in self._touched
        )

    def may_belong_to(self, sample: int) -> bool:
        """Whether no other sample's loss was seen to depend on it."""
        return all(bool(seeded[sample]) for _, seeded in self._touched)

    def holds_samples(self, batch: int) -> bool:
        """Whether probes have seen it fall apart into rows of single samples."""
        if not self._touched:
            return False
        touched = self._touched[0][0]
        layouts = exact_layouts(touched, batch) + folded_layouts(touched, batch)
        return any(map(self.allows, layouts))

    def _observe(self, grad: Tensor) -> None:
        seeded = self._seeded()
        if seeded is not None and grad is not None:
            touched = _find_touched(grad)
            if touched.any():
                self._touched.append((touched, seeded))
