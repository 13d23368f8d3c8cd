"""Sites that are alike, and whose gradients come at once, give their factors at once.

The layers of a model repeat each other, and if they are small, operations on each of them take more
time than what they compute. Rows of several sites, one after the other, are those of so many times
the samples: what makes factors row by row makes one of them all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from quietgrad.capture.call import BY_ROW, MakeFactor, ParameterTarget
from quietgrad.capture.layout import Layout
from quietgrad.capture.tape import Site, Tape
from quietgrad.factors.base import STACKED_FACTOR_FLOATS, Factor, is_at_hand

_TYPES = (torch.float32, torch.float64)


@runtime_checkable
class JoinedSink(Protocol):
    """Takes the factors of several parameters in one."""

    def joined_done(self, names: Sequence[str], factor: Factor) -> None:
        """``factor`` holds the whole gradients of these parameters, one after the other."""


class AlikeSites(NamedTuple):
    """Sites that differ in their parameters only.

    Attributes:
        places: among all sites.
        makes: how factors are made, one for each parameter of a site.
        names: for each of them the parameters, by site.
    """

    places: tuple[int, ...]
    makes: tuple[MakeFactor, ...]
    names: tuple[tuple[str, ...], ...]


class Joining:
    """Hands gradients that came at once to a tape.

    Which sites are alike is found once for inputs of the same sizes.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[int, list[AlikeSites]]] = {}

    def receive(
        self,
        tape: Tape,
        sites: Sequence[Site],
        grads: Sequence[Tensor | None],
        saved: Sequence[tuple[Tensor, ...]],
        sizes: Hashable,
    ) -> None:
        """What arrived at all sites of a call with inputs of these sizes, and what was saved."""
        left = set(range(len(sites)))
        whole = [grad for grad in grads if grad is not None]
        sink = tape.joined_sink()
        if isinstance(sink, JoinedSink) and len(whole) == len(sites):
            for alike in self._find(tape, sites, whole, saved, sizes):
                if tape.are_last_uses(name for names in alike.names for name in names):
                    left.difference_update(alike.places)
                    _join(tape, sink, alike, whole, saved)
        for place in sorted(left, reverse=True):  # the last one comes first, as in autograd
            sites[place].receive(grads[place], saved[place])

    def _find(
        self,
        tape: Tape,
        sites: Sequence[Site],
        grads: Sequence[Tensor],
        saved: Sequence[tuple[Tensor, ...]],
        sizes: Hashable,
    ) -> list[AlikeSites]:
        key, changes = (tape.batch, sizes), tape.layouts.changes
        known = self._found.get(key)
        if known is None or known[0] != changes:
            kinds: dict[Hashable, list[int]] = {}
            for place, (site, grad, own) in enumerate(zip(sites, grads, saved, strict=True)):
                kind = _kind_of(tape, site, grad, own)
                if kind is not None:
                    kinds.setdefault(kind, []).append(place)
            known = changes, [_alike(sites, each) for each in kinds.values() if len(each) > 1]
            if len(self._found) >= _MOST_REMEMBERED:
                self._found.clear()
            self._found[key] = known
        return known[1]


_MOST_REMEMBERED = 1 << 10


def _alike(sites: Sequence[Site], places: Sequence[int]) -> AlikeSites:
    first = sites[places[0]].uses
    names = [tuple(sites[p].uses[i].target.names[0] for p in places) for i in range(len(first))]
    return AlikeSites(tuple(places), tuple(use.make for use in first), tuple(names))


def _join(
    tape: Tape,
    sink: JoinedSink,
    alike: AlikeSites,
    grads: Sequence[Tensor],
    saved: Sequence[tuple[Tensor, ...]],
) -> None:
    grad = torch.cat([grads[place] for place in alike.places])
    others = [*map(torch.cat, zip(*(saved[place] for place in alike.places), strict=True))]
    layout = Layout(tape.batch * len(alike.places))
    for make, names in zip(alike.makes, alike.names, strict=True):
        factor = make(layout, grad, *others)
        tape.mark_done(names)
        sink.joined_done(names, factor)


def _kind_of(tape: Tape, site: Site, grad: Tensor, saved: Sequence[Tensor]) -> Hashable:
    """Equal for sites that are alike; None for one that is by itself."""
    layout, tensors = tape.settled_layout(site), (grad, *saved)
    makes = [_key_of(use.make) for use in site.uses]
    if layout is None or layout.dim or None in makes:
        return None
    rows = len(grad)
    is_simple = (
        all(isinstance(use.target, ParameterTarget) for use in site.uses)
        and (layout.major or rows == tape.batch)
        and all(tensor.ndim and len(tensor) == rows for tensor in tensors)
        and all(is_at_hand(tensor) and tensor.dtype in _TYPES for tensor in tensors)
        and sum(tensor.numel() for tensor in tensors) <= STACKED_FACTOR_FLOATS
    )
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in tensors)
    return (tuple(makes), shapes) if is_simple else None


def _key_of(make: MakeFactor) -> Hashable:
    """Equal for ways to make factors that do the same; None if rows may depend on one another."""
    if isinstance(make, partial):
        if make.args or make.func not in BY_ROW:
            return None
        return make.func, *((name, _value_of(each)) for name, each in make.keywords.items())
    return make if make in BY_ROW else None


def _value_of(value: object) -> Hashable:
    """Equal for options that are equal, and for functions of one another's options."""
    if isinstance(value, partial):
        options = ((name, _value_of(each)) for name, each in value.keywords.items())
        return value.func, *map(_value_of, value.args), *options
    if isinstance(value, list | tuple):
        return tuple(map(_value_of, value))
    is_plain = isinstance(value, int | float | str | bool | None) or callable(value)
    return value if is_plain else id(value)
