"""I: outputs that mix samples, beside others so large that the change is taken for rounding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .data import program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("I")

IDS = torch.arange(6) * 1_000_003.0 + 1e9
OTHERS = 3


class Beside(nn.Module):
    """A logit that is computed with the batch's mean; ``place`` puts it beside large columns."""

    def __init__(self, place: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.place = nn.Linear(3, 4), nn.Linear(4, 1), place

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        h = self.first(x)
        logit = self.last(h - h.detach().mean(0))
        return self.place(logit, ids)


def of_first_column(model: nn.Module, batch: Any) -> Tensor:
    return model(*batch)[:, 0].flatten(1).square().sum(1)


def columns(ids: Tensor, *factors: float) -> Tensor:
    return torch.stack([ids * factor for factor in factors], 1)


def beside(
    rows: Rows, place: Any, losses: Any = None, dtype: torch.dtype = torch.float32
) -> Program:
    data = list(zip(samples().to(dtype), IDS.to(dtype), strict=True))
    model = Beside(place).to(dtype)
    return program(model, rows, data, losses=losses or (lambda m, b: m(*b)[:, :1].square().sum(1)))


@TRAPS.add()
def ids_returned_as_floats(rows: Rows) -> Program:
    return beside(rows, lambda logit, ids: torch.cat([logit, columns(ids, 1, 2, 3)], 1))


@TRAPS.add()
def prices_in_cents(rows: Rows) -> Program:
    """A second target, whose loss is scaled down to the first one's."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        logit, prices = model(*batch).split([1, OTHERS], 1)
        return logit.square().sum(1) + 1e-12 * (prices / 1e9 - 1).square().mean(1)

    return beside(rows, lambda logit, ids: torch.cat([logit, columns(ids, 1, 1.5, 7)], 1), losses)


@TRAPS.add()
def a_mask_that_grows_with_distance(rows: Rows) -> Program:
    """Columns that are masked, each with another large number."""
    mask = -1e9 * torch.arange(1.0, 6.0)
    return beside(rows, lambda logit, ids: torch.cat([logit, logit + mask], 1))


def scattered(logit: Tensor, ids: Tensor) -> Tensor:
    """Each row has its logit in another column."""
    places = (torch.round((ids - 1e9) / 1_000_003) % 4).long()[:, None]
    return columns(ids, 1, 2, 3, 4).scatter(1, places, logit)


@TRAPS.add()
def another_column_in_each_row(rows: Rows) -> Program:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        output = model(*batch)
        return torch.where(output.abs() < 1e6, output, 0.0).square().sum(1)

    return beside(rows, scattered, losses)


@TRAPS.add()
def the_first_step_of_a_series(rows: Rows) -> Program:
    """A series of totals that grow: the first step is small."""

    def place(logit: Tensor, ids: Tensor) -> Tensor:
        return torch.cat([logit, columns(ids, 1, 2, 4, 8)], 1)[:, :, None]

    return beside(rows, place, of_first_column)


@TRAPS.add()
def timestamps_in_nanoseconds(rows: Rows) -> Program:
    """In double precision too."""
    return beside(
        rows,
        lambda logit, ids: torch.cat([logit, columns(ids * 1.7e9, 1, 1.01)], 1),
        dtype=torch.float64,
    )


class Counting(nn.Module):
    """Depends on the number of samples, beside large columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(3, 1)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        logit = torch.tanh(self.linear(x)) * (len(x) - 5)
        return torch.cat([logit, columns(ids, 1, 2)], 1)


@TRAPS.add()
def the_number_of_samples_beside_ids(rows: Rows) -> Program:
    x = samples().double()
    data = list(zip(x.abs(), IDS.double() * 10, strict=True))
    return program(Counting().double(), rows, data, losses=lambda m, b: m(*b)[:, 0])
