"""Workloads and implementations so small that nothing about their times means anything."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

import torch
from benchmarks.bench import Kind, NonPrivate, Workload
from benchmarks.bench.steps import Step
from torch import nn

from quietgrad.errors import MissingExtraError, SampleMixingError

CLASSES = 3


def line(batch_size: int) -> Workload:
    labels = torch.randint(CLASSES, (batch_size,))
    return Workload(nn.Linear(4, CLASSES), (torch.randn(batch_size, 4),), labels)


def picture(batch_size: int) -> Workload:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES))
    labels = torch.randint(CLASSES, (batch_size,))
    return Workload(model, (torch.randn(batch_size, 2, 4, 4),), labels, has_images=True)


def tokens(batch_size: int) -> Workload:
    """A class at every position."""
    labels = torch.randint(CLASSES, (batch_size, 5))
    inputs = torch.randn(batch_size, 5, 4)
    return Workload(nn.Linear(4, CLASSES), (inputs,), labels, lambda model, x: model(x).mT)


def recurrent(batch_size: int) -> Workload:
    labels = torch.randint(4, (batch_size,))
    inputs = torch.randn(batch_size, 5, 3)
    model = nn.GRU(3, 4, batch_first=True)
    return Workload(model, (inputs,), labels, lambda model, x: model(x)[0][:, -1])


def unbuildable(batch_size: int) -> Workload:
    raise MissingExtraError("somepackage", "someextra")


KINDS = [
    Kind("line", "a linear layer", 5, line),
    Kind("picture", "a convolution", 4, picture),
    Kind("positions", "a linear layer at every position", 4, tokens),
    Kind("recurrent", "a GRU", 4, recurrent),
    Kind("unbuildable", "needs what nobody has", 4, unbuildable),
]


@dataclass(frozen=True)
class StandIn(NonPrivate):
    """Takes plain steps, until it does something else."""

    name: str
    act: Callable[[int], None]

    @property
    def label(self) -> str:
        return self.name

    def prepare(self, workload: Workload, physical_per_logical: int) -> Step:
        plain, taken = super().prepare(workload, physical_per_logical), 0
        self.act(taken)

        def step() -> None:
            nonlocal taken
            taken += 1
            self.act(taken)
            plain()

        return step


def refuse_at_once(step: int) -> None:
    raise ValueError("no such layers, please")


def refuse_later(step: int) -> None:
    if step:
        raise SampleMixingError("samples are mixed")


def not_implemented(step: int) -> None:
    if step:
        raise NotImplementedError("tied weights")


def break_at_once(step: int) -> None:
    if step == 1:
        raise IndexError("position ids have batch size 1")


def break_in_a_round(step: int) -> None:
    if step == 6:
        raise IndexError("out of luck")


def interrupt(step: int) -> None:
    if step == 7:
        raise KeyboardInterrupt


def interrupt_at_once(step: int) -> None:
    raise KeyboardInterrupt


def terminate_at_once(step: int) -> None:
    signal.raise_signal(signal.SIGTERM)


def die(step: int) -> None:
    if step:
        raise SystemExit(3)
