"""H: one sample at a time, and something of it stays for the next one."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from .data import Net, program
from .harness import Collection, Program, Rows

TRAPS = Collection("H")

_LAST: dict[str, Tensor] = {}


def one_by_one(rows: Rows, middle: Callable[..., Tensor], kind: type[Net] = Net) -> Program:
    return program(kind(middle), rows, options={"physical_batch_size": 1})


@TRAPS.add()
def a_global_of_the_module(rows: Rows) -> Program:
    """The change from the last call, as for frames of a video."""
    _LAST.clear()

    def middle(net: Net, h: Tensor) -> Tensor:
        before = _LAST.get("h", h.detach())
        _LAST["h"] = h.detach()
        return h - before

    return one_by_one(rows, middle)


@TRAPS.add()
def a_class_attribute(rows: Rows) -> Program:
    class Model(Net):
        mean: ClassVar[Any] = 0.0

    def middle(net: Any, h: Tensor) -> Tensor:
        Model.mean = 0.5 * Model.mean + 0.5 * h.detach()
        return h - Model.mean

    return one_by_one(rows, middle, Model)


@TRAPS.add()
def a_mutable_default(rows: Rows) -> Program:
    def middle(net: Net, h: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006
        seen.append(h.detach())
        return h - torch.stack(seen).mean(0)

    return one_by_one(rows, middle)


@TRAPS.add()
def a_closure(rows: Rows) -> Program:
    largest = 1.0

    def middle(net: Net, h: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, float(h.detach().abs().max()))
        return torch.tanh(h + 4 - largest)

    return one_by_one(rows, middle)


class Running:
    """A callable with a state, behind a function."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros(4, dtype=torch.float64), 0

    def update(self, h: Tensor) -> Tensor:
        self.total, self.count = self.total + h, self.count + 1
        return self.total / self.count


@TRAPS.add()
def a_callable_in_a_closure(rows: Rows) -> Program:
    running = Running()
    return one_by_one(rows, lambda net, h: h - running.update(h.detach()))


@TRAPS.add()
def a_partial_function(rows: Rows) -> Program:
    def middle(seen: list[Tensor], net: Net, h: Tensor) -> Tensor:
        before = seen.pop() if seen else h.detach()
        seen.append(h.detach())
        return h - before

    return one_by_one(rows, functools.partial(middle, []))


def averages() -> Iterator[Any]:
    mean: Any = 0.0
    h = yield mean
    for count in itertools.count(1):
        mean = mean + (h - mean) / count
        h = yield mean


@TRAPS.add()
def a_generator_that_is_sent_values(rows: Rows) -> Program:
    model = Net(lambda net, h: h - net.running.send(h.detach()))
    model.running = averages()
    next(model.running)
    return program(model, rows, options={"physical_batch_size": 1})


@TRAPS.add()
def a_whole_number_in_an_attribute(rows: Rows) -> Program:
    """The largest exponent so far."""

    def middle(net: Any, h: Tensor) -> Tensor:
        net.exponent = max(net.exponent, int(h.detach().abs().max().log2().ceil()))
        return torch.tanh(h - net.exponent)

    made = one_by_one(rows, middle)
    made.model.exponent = 0
    return made


@TRAPS.add()
def an_attribute_of_a_function(rows: Rows) -> Program:
    def middle(net: Net, h: Tensor) -> Tensor:
        before = getattr(middle, "before", h.detach())
        middle.before = h.detach()  # type: ignore[attr-defined]
        return h - before

    return one_by_one(rows, middle)
