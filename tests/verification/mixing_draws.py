"""C: models that draw in evaluation too, and depend on places in the batch or on its size.

Each adds noise of size ``noise`` wherever it runs; what mixes samples does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .data import program
from .harness import Collection, Program, Rows

TRAPS = Collection("C")

BASE = torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64)


def data(signs: str = "+-+-+-") -> list[tuple[Tensor]]:
    """Samples on one line, to either side."""
    return [(BASE * (1 if sign == "+" else -1),) for sign in signs]


class Noisy(nn.Module):
    """A layer, noise, and something that is done to all samples together."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(3, 4, bias=False), nn.Linear(4, 3, bias=False)
        self.noise, self.between = 0.1, between
        self.double()

    def draw(self, h: Tensor) -> Tensor:
        return h + self.noise * torch.randn_like(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.between(self, self.draw(self.encoder(x))))


def noisy(
    rows: Rows,
    between: Callable[[nn.Module, Tensor], Tensor],
    signs: str = "+-+-+-",
    **options: object,
) -> Program:
    def losses(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return model(*batch).sum(1)

    return program(Noisy(between), rows, data(signs), losses=losses, options=options)


@TRAPS.add()
def diffusion_with_stratified_times(rows: Rows) -> Program:
    """A low-discrepancy sampler: the times of a batch are spread evenly."""

    def between(model: nn.Module, h: Tensor) -> Tensor:
        start = torch.rand(()) * (1 if model.noise else 0)
        t = (start + torch.arange(len(h), dtype=h.dtype) / len(h)) % 1
        return h * torch.cos(2 * torch.pi * t)[:, None]

    return noisy(rows, between, "++---+")


@TRAPS.add()
def an_autoencoder_that_scales_with_the_batch(rows: Rows) -> Program:
    """A sum where a mean was meant."""
    options = {"clipping": "abadi", "radius": 2.5}
    return noisy(rows, lambda model, h: h * len(h) / 4, "++++++", **options)


@TRAPS.add()
def a_temperature_that_follows_the_batch_size(rows: Rows) -> Program:
    return noisy(rows, lambda model, h: torch.tanh(4 * h * (len(h) - 5)), "++++++")


@TRAPS.add()
def rotary_positions_along_the_batch(rows: Rows) -> Program:
    """An encoding of positions for data with the sequence first."""

    def between(model: nn.Module, h: Tensor) -> Tensor:
        angles = 3.0 * torch.arange(len(h), dtype=h.dtype)[:, None]
        left, right = h.chunk(2, 1)
        sines, cosines = angles.sin(), angles.cos()
        return torch.cat([left * cosines - right * sines, right * cosines + left * sines], 1)

    return noisy(rows, between)


@TRAPS.add()
def every_other_sample_flipped(rows: Rows) -> Program:
    """An augmentation by place."""

    def between(model: nn.Module, h: Tensor) -> Tensor:
        signs = torch.ones(len(h), 1, dtype=h.dtype)
        signs[::2] = -1
        return h * signs

    return noisy(rows, between)


@TRAPS.add(steps=10, every=True)  # some orders leave every sample in its half
def domains_by_place(rows: Rows) -> Program:
    """The first half of the batch is taken for the source, the rest for the target."""

    def between(model: nn.Module, h: Tensor) -> Tensor:
        source = torch.arange(len(h)) < len(h) // 2
        return torch.where(source[:, None], h, -h)

    return noisy(rows, between, "+++---")


@TRAPS.add()
def an_ensemble_whose_members_share_the_batch(rows: Rows) -> Program:
    """Fast weights of plus and minus one: the k-th sample goes to member k modulo 2."""

    def between(model: nn.Module, h: Tensor) -> Tensor:
        members = torch.arange(len(h)) % len(model.fast)
        return h * model.fast[members]

    made = noisy(rows, between)
    fast = torch.tensor([[1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    made.model.register_buffer("fast", fast)
    return made
