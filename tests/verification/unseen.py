"""Programs that no verification in training sees: docs/sharp_edges.md lists them.

Each trains without an error, though one sample moves the sum too far, or data leaves. Should one of
them be refused some day, the list is to become shorter.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from .data import Net, program
from .harness import Collection, Program, Rows
from .mixing_kept import keeping, keeps
from .mixing_padding import TEXTS, Bag, below_one, padded

UNSEEN = Collection("unseen")


@UNSEEN.add()
def a_hook_that_the_loop_registers(rows: Rows) -> Program:
    """The model returns what it has inside, and the loop puts a hook on it."""

    class Model(Net):
        def forward(self, x: Tensor, *others: Any) -> Any:
            h = self.first(x)
            return h, self.last(torch.tanh(h / 10))

    def losses(model: nn.Module, batch: Any) -> Tensor:
        h, output = model(*batch)
        mean = h.detach().mean(0)
        h.register_hook(lambda grad: 5 * grad * mean.sign())
        return output.square().sum(1)

    return program(Model(), rows, losses=losses)


@UNSEEN.add()
def a_number_that_the_loop_computes(rows: Rows) -> Program:
    """It is passed to the model, which cannot tell it from a constant."""
    model = Net(lambda net, h, shift: torch.tanh(h - shift))

    def losses(model: nn.Module, batch: Any) -> Tensor:
        (x,) = batch
        return model(x, float(x.mean())).square().sum(1)

    return program(model, rows, losses=losses)


@UNSEEN.add()
def statistics_in_the_loss(rows: Rows) -> Program:
    def losses(model: nn.Module, batch: Any) -> Tensor:
        output = model(*batch)
        return (output - output.detach().mean(0)).square().sum(1)

    return program(Net(), rows, losses=losses)


@UNSEEN.add()
def similarities_used_detached(rows: Rows) -> Program:
    """A table of pairs that the model returns, used in the losses without a gradient; it warns."""

    class Model(Net):
        def forward(self, x: Tensor, *others: Any) -> Any:
            h = self.first(x)
            return self.last(h), h @ h.mT

    def losses(model: nn.Module, batch: Any) -> Tensor:
        output, pairs = model(*batch)
        apart = pairs.detach().mean(1) - pairs.detach().mean()
        return apart * output.sum(1)

    return program(Model(), rows, losses=losses)


@UNSEEN.add()
def padding_in_the_loop(rows: Rows) -> Program:
    """What is not collated by collate_fn is not tried in other company."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        return below_one(model, padded(batch))

    options = {"collate_fn": list}
    return program(Bag().double(), rows, TEXTS, losses=losses, options=options)


@UNSEEN.add()
def random_mixing_in_collating(rows: Rows) -> Program:
    """What draws at random when it collates cannot be compared with itself."""

    def collate(elements: list[Any]) -> tuple[Tensor]:
        x = torch.stack([element for (element,) in elements])
        return ((x - x.mean(0)) * (1 + 1e-3 * torch.rand(())),)

    return program(Net(), rows, options={"collate_fn": collate})


@UNSEEN.add(leak=keeps(lambda net: net.encode.cache_info().currsize, 6))
def a_cache_of_a_function(rows: Rows) -> Program:
    """What was computed for a length is not computed again."""

    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        for n in lengths.tolist():
            net.encode(n)

    return keeping(rows, keep, encode=functools.lru_cache(maxsize=None)(lambda n: n**0.5))


@UNSEEN.add(steps=2)
def what_begins_later_and_is_verified_once(rows: Rows) -> Program:
    """With verification="once" only what is new is verified, and a weight of zero is not."""
    model = Net(lambda net, h: h - net.weight * h.detach().mean(0))
    model.weight, steps = 0.0, iter(range(100))

    def begin() -> None:
        model.weight = min(1.0, float(next(steps)))

    return program(model, rows, options={"verification": "once"}, before_batch=begin)


@UNSEEN.add(steps=2, leak=lambda made, engine: bool(made.model.queue.any()))
def a_buffer_written_after_the_step(rows: Rows) -> Program:
    """Between two batches buffers are the user's."""
    model = Net()
    model.register_buffer("queue", torch.zeros(6, 3, dtype=torch.float64))
    seen: list[Tensor] = []

    def losses(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch[0])
        return model(*batch).square().sum(1)

    def write() -> None:
        if seen:
            model.queue.copy_(seen[-1])

    return program(model, rows, losses=losses, before_batch=write)
