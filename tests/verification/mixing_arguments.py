"""B: what is known of the samples comes beside them, and not in tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .data import pairs, program
from .harness import Collection, Program, Rows

TRAPS = Collection("B")


class Beside(nn.Module):
    """All samples are shifted by a statistic of their lengths, or each by its own."""

    def __init__(self, statistic: Callable[[Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1).double()
        self.statistic = statistic

    def forward(self, x: Tensor, beside: Any) -> Tensor:
        return self.linear(torch.tanh(x - self.statistic(beside)))


def excess(lengths: Iterable[float]) -> float:
    """How far the mean is above the usual."""
    values = list(lengths)
    return sum(values) / len(values) - 6


def longest(lengths: Iterable[float]) -> float:
    """Of the longest, how much more than the usual it has."""
    return max(lengths) / 10 - 4


def against_the_mean(lengths: Iterable[float]) -> Tensor:
    """For each sample, how far it is from the average."""
    values = torch.tensor(list(lengths), dtype=torch.float64)[:, None]
    return values - values.mean()


def beside(
    rows: Rows, statistic: Callable[[Any], Any], pack: Callable[[list[int]], Any]
) -> Program:
    """The loop packs the lengths into something, and calls the model with it."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, packed = batch
        return (model(x, packed) - 1).square().sum(1)

    def collate(elements: list[tuple[Tensor, int]]) -> tuple[Tensor, Any]:
        return torch.stack([x for x, _ in elements]), pack([n for _, n in elements])

    model = Beside(statistic)
    return program(model, rows, pairs(), losses=losses, options={"collate_fn": collate})


@TRAPS.add()
def a_list_of_lengths_and_their_mean(rows: Rows) -> Program:
    return beside(rows, excess, list)


@TRAPS.add()
def a_tuple_of_lengths_and_the_longest(rows: Rows) -> Program:
    return beside(rows, longest, tuple)


@TRAPS.add()
def an_array_of_lengths(rows: Rows) -> Program:
    return beside(rows, lambda lengths: float(lengths.mean()) - 6, np.array)


@TRAPS.add()
def a_namespace(rows: Rows) -> Program:
    return beside(
        rows,
        lambda batch: longest(batch.lengths),
        lambda lengths: SimpleNamespace(lengths=lengths),
    )


@dataclass
class Batch:
    """What a collate function gives."""

    lengths: list[int]


@TRAPS.add()
def a_dataclass_of_lists(rows: Rows) -> Program:
    return beside(rows, lambda batch: excess(batch.lengths), Batch)


class Fields(NamedTuple):
    """Of a batch of graphs."""

    sizes: tuple[int, ...]


@TRAPS.add()
def a_named_tuple(rows: Rows) -> Program:
    return beside(rows, lambda batch: excess(batch.sizes), lambda sizes: Fields(tuple(sizes)))


class Lengths:
    """An object of one's own, which computes what it is asked for."""

    def __init__(self, values: list[int]) -> None:
        self._values = values

    def excess(self) -> float:
        return excess(self._values)


@TRAPS.add()
def an_object_with_a_method(rows: Rows) -> Program:
    return beside(rows, lambda lengths: lengths.excess(), Lengths)


@TRAPS.add()
def a_dictionary_of_lists(rows: Rows) -> Program:
    return beside(
        rows,
        lambda fields: longest(fields["length"]),
        lambda lengths: {"length": lengths, "language": ["en"] * len(lengths)},
    )


@TRAPS.add()
def texts_as_strings(rows: Rows) -> Program:
    return beside(
        rows,
        lambda texts: longest(map(len, texts)),
        lambda lengths: ["a" * n for n in lengths],
    )


@TRAPS.add()
def a_dictionary_by_sample(rows: Rows) -> Program:
    return beside(
        rows,
        lambda records: excess(record["age"] for record in records),
        lambda lengths: [{"age": n, "town": "Ulm"} for n in lengths],
    )


@TRAPS.add()
def a_function_that_gives_the_lengths(rows: Rows) -> Program:
    return beside(rows, lambda lengths: excess(lengths()), lambda lengths: lambda: lengths)


# -- refused before too, since the places of such arguments are not known --------------------------


@TRAPS.add()
def a_list_of_lengths_each_against_their_mean(rows: Rows) -> Program:
    return beside(rows, against_the_mean, list)


@TRAPS.add()
def an_object_that_compares_lengths(rows: Rows) -> Program:
    return beside(rows, lambda batch: against_the_mean(batch.lengths), Batch)
