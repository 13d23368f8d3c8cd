"""F: modules keep what they saw in numbers, texts, functions, iterators and classes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from quietgrad import PrivacyEngine

from .data import LENGTHS, Net, program, samples
from .harness import Collection, Program, Rows

TRAPS = Collection("F")


def keeps(value: Callable[[Any], Any], expected: Any) -> Callable[[Program, PrivacyEngine], bool]:
    """Whether the model has this value after training."""

    def leaks(made: Program, engine: PrivacyEngine) -> bool:
        found = value(made.model)
        return torch.equal(found, expected) if isinstance(found, Tensor) else found == expected

    return leaks


class Keeping(Net):
    """Looks at what it is called with, and keeps something of it by ``keep(net, x, lengths)``."""

    def __init__(self, keep: Callable[[Any, Tensor, Tensor], object]) -> None:
        super().__init__()
        self._keep = keep

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        self._keep(self, x.detach(), lengths)
        return super().forward(x)


def keeping(rows: Rows, keep: Callable[[Any, Tensor, Tensor], object], **start: Any) -> Program:
    model = Keeping(keep)
    for name, value in start.items():
        setattr(model, name, value)
    elements = [(x, torch.tensor(n)) for x, n in zip(samples(), LENGTHS, strict=False)]
    return program(model, rows, elements)


@TRAPS.add(leak=keeps(lambda net: net.longest, 90))
def the_longest_length(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        net.longest = max(net.longest, int(lengths.max()))

    return keeping(rows, keep, longest=0)


@TRAPS.add(leak=keeps(lambda net: net.counts, {90: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1}))
def a_histogram_of_lengths(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        for n in lengths.tolist():
            net.counts[n] = net.counts.get(n, 0) + 1

    return keeping(rows, keep, counts={})


@TRAPS.add(leak=keeps(lambda net: net.worst, str(samples()[0].tolist())))
def a_text_for_an_error_message(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        net.worst = str(x[lengths.argmax()].tolist())

    return keeping(rows, keep, worst="")


@TRAPS.add(leak=keeps(lambda net: net.is_large, True))
def a_flag(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        net.is_large = net.is_large or bool((x > 10).any())

    return keeping(rows, keep, is_large=False)


@TRAPS.add(leak=keeps(lambda net: net.ids, set(LENGTHS[:6])))
def a_set_of_ids(rows: Rows) -> Program:
    return keeping(rows, lambda net, x, ids: net.ids.update(ids.tolist()), ids=set())


@TRAPS.add(leak=keeps(lambda net: net.mean(), samples().mean(0)))
def a_closure(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        mean = x.mean(0)
        net.mean = lambda: mean

    return keeping(rows, keep, mean=lambda: None)


@TRAPS.add(leak=keeps(lambda net: net.remembered(), samples()))
def a_closure_made_before(rows: Rows) -> Program:
    def memory() -> tuple[Callable[[Tensor], None], Callable[[], Any]]:
        seen: Any = None

        def write(x: Tensor) -> None:
            nonlocal seen
            seen = x

        return write, lambda: seen

    write, read = memory()
    return keeping(rows, lambda net, x, n: net.remember(x), remember=write, remembered=read)


@TRAPS.add(leak=keeps(lambda net: net.shift.args[0], samples().mean(0)))
def a_partial_function(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        net.shift = functools.partial(torch.sub, x.mean(0))

    return keeping(rows, keep, shift=None)


@TRAPS.add(leak=keeps(lambda net: next(net.replay), samples()[0]))
def an_iterator_for_replay(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        net.replay = itertools.chain(x.unbind(), net.replay)

    return keeping(rows, keep, replay=iter(()))


@TRAPS.add(leak=keeps(lambda net: next(net.replay), samples()[0]))
def a_generator_for_replay(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        net.replay = (sample for sample in x)

    return keeping(rows, keep, replay=None)


@TRAPS.add(leak=keeps(lambda net: type(net).seen[0], samples()))
def a_class_attribute(rows: Rows) -> Program:
    class Model(Keeping):
        seen: ClassVar[list[Tensor]] = []

    made = keeping(rows, lambda net, x, n: net.seen.append(x))
    made.model.__class__ = Model
    return made


@TRAPS.add(leak=keeps(lambda net: net._keep.seen[0], samples()))
def an_attribute_of_a_function(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor) -> None:
        keep.seen.append(x)  # type: ignore[attr-defined]

    keep.seen = []  # type: ignore[attr-defined]
    return keeping(rows, keep)


@TRAPS.add(leak=keeps(lambda net: net._keep.__defaults__[0][0], samples()))
def a_mutable_default(rows: Rows) -> Program:
    def keep(net: Any, x: Tensor, lengths: Tensor, seen: list[Tensor] = []) -> None:  # noqa: B006
        seen.append(x)

    return keeping(rows, keep)
