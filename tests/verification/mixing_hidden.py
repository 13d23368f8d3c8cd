"""What hides from a verification that looks in one place only: found by attacks on earlier ones."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from quietgrad import PrivacyEngine

from .data import LENGTHS, Net, centred, program, samples
from .harness import Collection, Program, Rows
from .mixing_padding import Bag, texts

C, E, F, H, B, K = (Collection(letter) for letter in "CEFHBK")
TRAPS = [C, E, F, H, B, K]


def by_number(h: Tensor) -> Tensor:
    return torch.sin(h + 3 * len(h))


@C.add()
def the_number_of_samples_beside_a_draw_of_python(rows: Rows) -> Program:
    """A layer is dropped for all samples, now and then."""
    return program(Net(lambda net, h: by_number(h) if random.random() < 2 else h), rows)


@C.add()
def the_number_of_samples_beside_a_draw_for_each_pair(rows: Rows) -> Program:
    def middle(net: Any, h: Tensor) -> Tensor:
        return by_number(h) + 0 * torch.rand(len(h), len(h)).sum()

    return program(Net(middle), rows)


class Backbone(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return centred(x)


def frozen(rows: Rows, features: int, chunks: int) -> Program:
    class Model(Net):
        def __init__(self) -> None:
            super().__init__(inputs=features)
            self.backbone = Backbone()

    def losses(model: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            parts = [model.backbone(part) for part in batch[0].chunk(chunks)]
        return model(torch.cat(parts)).square().sum(1)

    data = [(x,) for x in samples(6, features)]
    return program(Model(), rows, data, losses=losses)


@E.add()
def as_many_features_as_samples(rows: Rows) -> Program:
    return frozen(rows, 6, 1)


@E.add()
def as_many_features_as_samples_in_chunks(rows: Rows) -> Program:
    return frozen(rows, 6, 2)


def kept_gradient(made: Program, engine: PrivacyEngine) -> bool:
    return bool(made.model.seen.any())


@F.add(leak=kept_gradient)
def a_hook_that_keeps_gradients(rows: Rows) -> Program:
    def middle(net: Any, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(lambda grad: setattr(net, "seen", grad.mean(0)))
        return h

    model = Net(middle)
    model.seen = torch.zeros(4)
    return program(model, rows)


@F.add(leak=lambda made, engine: bool(made.model.bank.any()))
def a_large_bank(rows: Rows) -> Program:
    def middle(net: Any, h: Tensor) -> Tensor:
        net.bank[: len(h)] = h.detach().numpy()
        return h

    model = Net(middle)
    model.bank = torch.zeros(17_001, 4, dtype=torch.float64).numpy()
    return program(model, rows)


def remembered(x: Tensor, memory: dict[str, Tensor] = {}) -> Tensor:  # noqa: B006
    return memory.setdefault("mean", x.mean(0))


@F.add(leak=lambda made, engine: bool(remembered.__defaults__[0]))  # type: ignore[index]
def a_default_of_a_helper(rows: Rows) -> Program:
    remembered.__defaults__[0].clear()  # type: ignore[index]

    class Model(Net):
        def forward(self, x: Tensor, *others: Any) -> Tensor:
            return super().forward(x - remembered(x.detach()))

    return program(Model(), rows)


@H.add(steps=2)
def the_largest_token(rows: Rows) -> Program:
    """Reversing a sample does not change it."""

    def middle(net: Any, h: Tensor, length: Tensor) -> Tensor:
        net.longest = max(net.longest, int(length.max()))
        return torch.tanh(h - net.longest)

    data = [(x, torch.tensor(n)) for x, n in zip(samples(), LENGTHS, strict=False)]
    made = program(Net(middle), rows, data, options={"physical_batch_size": 1})
    made.model.longest = 0
    return made


class Lengths:
    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __copy__(self) -> Any:
        raise TypeError

    def mean(self) -> float:
        return sum(self.lengths) / len(self.lengths)


def beside(rows: Rows, make: Any) -> Program:
    def losses(model: Any, batch: Any) -> Tensor:
        x, lengths = batch
        return model(x, make(lengths.tolist())).square().sum(1)

    data = [(x, torch.tensor(n)) for x, n in zip(samples() / 4, LENGTHS, strict=False)]
    return program(Net(lambda net, h, mean: torch.sin(h + mean())), rows, data, losses=losses)


@B.add()
def a_method_of_an_object_that_cannot_be_copied(rows: Rows) -> Program:
    return beside(rows, lambda lengths: Lengths(lengths).mean)


@B.add()
def a_deque(rows: Rows) -> Program:
    made = beside(rows, deque)
    made.model._middle = lambda net, h, lengths: torch.sin(h + sum(lengths) / len(lengths))
    return made


@K.add(count=32)
def one_long_text_among_many(rows: Rows) -> Program:
    data = [torch.tensor([3] * 60), *(torch.tensor([place % 7 + 1]) for place in range(31))]
    collate = {"collate_fn": lambda elements: (pad_sequence(elements, batch_first=True),)}
    return texts(rows, Bag(), data, **collate)
