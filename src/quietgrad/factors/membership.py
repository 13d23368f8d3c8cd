"""Which records make up a sample: ordinarily one, or all those of a person that were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from quietgrad.factors.base import send


class Membership:
    """Whose the records of a batch are: those of a sample stand side by side.

    Args:
        counts: how many records each sample has; a number means so many samples of one.
        width: room for the records of a sample where they are laid side by side. The largest count
            if None.

    Attributes:
        samples: the number of samples.
        records: the number of records.
        batch: the length of a dimension that runs over the records. It is 1 if there is one
            sample, to which everything belongs.
        is_plain: whether records and samples need not be told apart in such a dimension.
        is_told: whether the user was given :attr:`owners`, perhaps to hand them to the model.
    """

    is_told = False

    def __init__(self, counts: Sequence[int] | int, width: int | None = None) -> None:
        self._counts = () if isinstance(counts, int) else tuple(counts)
        self.samples = counts if isinstance(counts, int) else len(self._counts)
        self.records = counts if isinstance(counts, int) else sum(self._counts)
        self.batch = self.records if self.samples > 1 else 1
        self.is_plain = self.batch == self.samples
        self._width = width or max(self._counts, default=1)

    @cached_property
    def owners(self) -> Tensor:
        """The sample of each record, ``[batch]``."""
        if self.is_plain:
            return torch.arange(self.batch, device="cpu")
        counts = torch.tensor(self._counts, device="cpu")
        return torch.arange(self.samples, device="cpu").repeat_interleave(counts)

    def tell(self) -> Tensor:
        """The sample of each record, ``[records]``, to be handed to the model."""
        self.is_told = True
        is_one = self.batch < self.records
        if is_one:
            return torch.zeros(self.records, dtype=torch.int64, device="cpu")
        return self.owners.clone()

    @cached_property
    def shares(self) -> Tensor:
        """One over the number of records of the sample that each belongs to, ``[records]``."""
        if self.samples == self.records:
            return torch.ones(self.records, dtype=torch.float64, device="cpu")
        counts = torch.tensor(self._counts, dtype=torch.float64, device="cpu")
        return (1 / counts).repeat_interleave(counts.long())

    @cached_property
    def firsts(self) -> Tensor:
        """The first record of each sample."""
        if self.is_plain:
            return torch.arange(self.samples, device="cpu")
        return torch.tensor([0, *self._counts[:-1]], device="cpu").cumsum(0)

    def owners_on(self, device: torch.device) -> Tensor:
        """:attr:`owners`, for tensors on this device."""
        return send(self.owners, device)

    def spread(self, by_sample: Tensor) -> Tensor:
        """What each sample has, for each of its records."""
        return by_sample if self.is_plain else by_sample[self.owners_on(by_sample.device)]

    def pick(self, by_record: Tensor) -> Tensor:
        """Of what records have, that of the first of each sample."""
        return by_record if self.is_plain else by_record[self.firsts]

    def sum(self, by_record: Tensor) -> Tensor:
        """``[batch, ...]``, added up over the records of each sample."""
        if self.is_plain:
            return by_record
        total = by_record.new_zeros(self.samples, *by_record.shape[1:])
        return total.index_add_(0, self.owners_on(by_record.device), by_record)

    def any(self, by_record: Tensor) -> Tensor:
        """Which samples have a record of which this is true."""
        return by_record if self.is_plain else self.sum(by_record.long()).bool()

    def collect(self, by_record: Tensor) -> Tensor:
        """``[batch, K, ...]`` as ``[samples, width * K, ...]``, with zeros behind the last."""
        each, tail = by_record.shape[1], by_record.shape[2:]
        if self.is_plain:
            return by_record
        if set(self._counts) == {self._width}:
            return by_record.reshape(self.samples, self._width * each, *tail)
        rows = by_record.new_zeros(self.samples * self._width, each, *tail)
        places = torch.arange(self.batch, device="cpu") + self.owners * self._width
        places -= self.firsts[self.owners]
        rows.index_copy_(0, send(places, rows.device), by_record)
        return rows.view(self.samples, self._width * each, *tail)

    def list_records(self, samples: Tensor) -> Tensor:
        """The records of some samples, one sample after the other."""
        if self.is_plain:
            return samples
        return torch.cat([self._records_of(sample) for sample in samples.tolist()])

    def select(self, samples: Tensor) -> Membership:
        """Of the records that :meth:`list_records` gives."""
        if not self._counts:
            return Membership(len(samples))
        return Membership([self._counts[sample] for sample in samples.tolist()], self._width)

    @property
    def counts(self) -> Sequence[int]:
        """How many records each sample has."""
        return self._counts or [1] * self.samples

    def substitute(self, samples: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Of which records to put a copy in each place, for sample ``i`` to become ``samples[i]``.

        A sample keeps its number of records, or gets so many: those of the other one come in turn.
        """
        if self.is_plain:
            return samples
        found = []
        for sample, count in zip(samples.tolist(), counts or self._counts, strict=True):
            records = self._records_of(sample)
            found.append(records[torch.arange(count, device="cpu") % len(records)])
        return torch.cat(found)

    def resized(self, counts: Sequence[int]) -> Membership:
        """Of as many samples with so many records."""
        return Membership(counts, max(self._width, *counts))

    def _records_of(self, sample: int) -> Tensor:
        first = int(self.firsts[sample])
        return torch.arange(first, first + self._counts[sample], device="cpu")
