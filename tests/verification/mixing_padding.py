"""K: padding that counts, and mixing in what collates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from .data import pairs, program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("K")

TEXTS = [torch.tensor([3, 4, 5] * 13), *map(torch.tensor, ([1, 2], [7, 8, 9], [6], [2, 9], [5, 1]))]


def padded(texts: list[Tensor]) -> tuple[Tensor]:
    """To the longest of the micro-batch, with zeros."""
    return (pad_sequence(texts, batch_first=True),)


def below_one(model: nn.Module, batch: Any) -> Tensor:
    return (model(*batch) - 1).square().sum(1)


def texts(
    rows: Rows, model: nn.Module, data: list[Tensor] | None = None, **options: Any
) -> Program:
    options = {"collate_fn": padded} | options
    return program(model.double(), rows, data or TEXTS, losses=below_one, options=options)


class Bag(nn.Module):
    """The mean of all positions, padding and all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.embedding(ids).mean(1))


@TRAPS.add()
def a_mean_over_padded_positions(rows: Rows) -> Program:
    return texts(rows, Bag())


@TRAPS.add()
def a_mean_over_padded_positions_in_micro_batches(rows: Rows) -> Program:
    return texts(rows, Bag(), physical_batch_size=3)


class Convolution(nn.Module):
    """Pools over all positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.conv = nn.Embedding(10, 4), nn.Conv1d(4, 4, 3, padding=1)
        self.linear = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.conv(self.embedding(ids).transpose(1, 2)).relu()
        return self.linear(h.mean(2))


@TRAPS.add()
def a_convolution_and_global_pooling(rows: Rows) -> Program:
    return texts(rows, Convolution())


class Recurrent(nn.Module):
    """Takes the last state, which is that of padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.lstm = nn.Embedding(10, 4), nn.LSTM(4, 4, batch_first=True)
        self.linear = nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(ids))
        return self.linear(states[:, -1])


@TRAPS.add()
def the_last_state_at_the_padded_end(rows: Rows) -> Program:
    return texts(rows, Recurrent())


class Attention(nn.Module):
    """Attends to padding too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 2)
        self.query, self.value = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        weights = torch.softmax(self.query(h[:, :1]) @ h.transpose(1, 2), -1)
        return self.linear((weights @ self.value(h))[:, 0])


@TRAPS.add()
def attention_without_a_mask(rows: Rows) -> Program:
    return texts(rows, Attention())


@TRAPS.add()
def padding_on_the_left(rows: Rows) -> Program:
    """Positions are counted from the padded beginning."""

    class Model(Bag):
        def __init__(self) -> None:
            super().__init__()
            self.positions = nn.Embedding(40, 4)

        def forward(self, ids: Tensor) -> Tensor:
            places = torch.arange(ids.shape[1])
            h = self.embedding(ids[:, -1]) + 3 * self.positions(places)[-1]
            return self.linear(h)

    def collate(elements: list[Tensor]) -> tuple[Tensor]:
        return (pad_sequence(elements, batch_first=True, padding_side="left"),)

    return texts(rows, Model(), collate_fn=collate)


# -- mixing in what collates -----------------------------------------------------------------------


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def collated(rows: Rows, mix: Callable[[Tensor], Tensor]) -> Program:
    def collate(elements: list[Tensor]) -> tuple[Tensor]:
        return (mix(torch.stack(elements)),)

    return program(Linear(), rows, samples(), losses=below_one, options={"collate_fn": collate})


@TRAPS.add()
def the_mean_subtracted_in_collating(rows: Rows) -> Program:
    return collated(rows, lambda x: x - x.mean(0))


@TRAPS.add()
def scaled_by_the_largest_in_collating(rows: Rows) -> Program:
    return collated(rows, lambda x: 2 * (x - x.amin(0)) / (x.amax(0) - x.amin(0)) - 1)


@TRAPS.add()
def mixup_in_collating(rows: Rows) -> Program:
    return collated(rows, lambda x: 0.5 * x + 0.5 * x.roll(1, 0))


@TRAPS.add()
def missing_values_filled_in_collating(rows: Rows) -> Program:
    """By the mean of the batch."""
    return collated(rows, lambda x: torch.where(x < 0, x.mean(0), x))


@TRAPS.add()
def cut_to_the_shortest_in_collating(rows: Rows) -> Program:
    def collate(elements: list[Tensor]) -> tuple[Tensor]:
        shortest = min(map(len, elements))
        return (torch.stack([text[-shortest:] for text in elements]),)

    data = [torch.tensor([1]), *(torch.tensor([word] * 6 + [1]) for word in range(2, 7))]
    return texts(rows, Bag(), data, collate_fn=collate)


def targeted(rows: Rows, mix: Callable[[Tensor], Tensor]) -> Program:
    """What is mixed is for the loss alone: a target for each sample."""

    def collate(elements: list[Tensor]) -> tuple[Tensor, Tensor]:
        x = torch.stack(elements)
        return x, mix(x.sum(1))

    def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, target = batch
        return (model(x).sum(1) - target).square()

    return program(Linear(), rows, samples(), losses=losses, options={"collate_fn": collate})


@TRAPS.add()
def targets_in_another_order_than_samples(rows: Rows) -> Program:
    return targeted(rows, lambda y: y.flip(0))


@TRAPS.add()
def targets_scaled_in_collating(rows: Rows) -> Program:
    return targeted(rows, lambda y: (y - y.mean()) / (y.std(correction=0) + 1e-3))


class Shifted(Linear):
    """By what comes with the batch, the same for all samples."""

    def forward(self, x: Tensor, shift: Any) -> Tensor:
        return super().forward(torch.tanh(x - shift))


def shifted(rows: Rows, pack: Callable[[float], Any]) -> Program:
    """The mean length, less the usual one, is computed where samples are collated."""

    def collate(elements: list[tuple[Tensor, int]]) -> tuple[Tensor, Any]:
        mean = sum(n for _, n in elements) / len(elements)
        return torch.stack([x for x, _ in elements]), pack(mean - 6)

    options = {"collate_fn": collate}
    return program(Shifted(), rows, pairs(), losses=below_one, options=options)


@TRAPS.add()
def a_number_of_the_batch_from_collating(rows: Rows) -> Program:
    return shifted(rows, float)


@TRAPS.add()
def a_tensor_without_samples_from_collating(rows: Rows) -> Program:
    return shifted(rows, torch.tensor)
