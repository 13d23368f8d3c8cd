"""When and how it is verified that samples are independent and rows belong to whom they should."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quietgrad.capture.compare import Node, dense_parts, parse_output, split_samples, tensors_in
from quietgrad.capture.independence import check_independence
from quietgrad.capture.model_state import ModelState, mark_repeating, preserve_state, seed_all
from quietgrad.errors import EscapedGradientError, SampleMixingError

if TYPE_CHECKING:
    from quietgrad.capture.layout import OutputLayout, SiteKey
    from quietgrad.capture.tape import Tape

# Operations that pick rows by an index computed at run time: which rows go where may differ from
# batch to batch though the graph looks the same.
_SELECTIONS = tuple(
    "Index Gather Scatter MaskedSelect MaskedScatter Take Sort Topk Unique Put".split()
)

# A gate this far closed hides what is behind it: LayerScale begins at 1e-6, and at 1e-4.
_NEAR_ZERO = 1e-2


Links = frozenset[tuple[str, ...]]
"""What kinds of nodes a graph has and how they follow each other, whatever their number."""


def summarize_graph(
    losses: Tensor, batch: int, describe: Callable[[nn.Parameter], str]
) -> tuple[Links, bool]:
    """Its links, and whether it selects rows; refused if a parameter would get a gradient."""
    links: set[tuple[str, ...]] = set()
    selects = False
    for node in _nodes(losses):
        _refuse_parameter(node, describe)
        children = [child for child, _ in node.next_functions if child is not None]
        links.add((_label(node, batch), *(_label(child, batch) for child in children)))
        selects = selects or (type(node).__name__.startswith(_SELECTIONS) and not _keeps_rows(node))
    return frozenset(links), selects


def _nodes(losses: Tensor) -> Iterator[Any]:
    seen = {losses.grad_fn}
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


def _refuse_parameter(node: Any, describe: Callable[[nn.Parameter], str]) -> None:
    variable = getattr(node, "variable", None)
    if isinstance(variable, nn.Parameter):
        raise EscapedGradientError(
            f"{describe(variable)} would receive an ordinary gradient: it is used outside the "
            "model's forward (in the loss, or through model.forward(...) instead of model(...)) or "
            "inside something that hides from the capture, the model ran in eval mode, or it "
            "belongs to a criterion and not to the model. Use parameters only inside a forward "
            "called as model(...), after model.train()."
        )


def _label(node: Any, batch: int) -> str:
    """A node's name; with its index where it takes one sample out, since the order may change."""
    name = type(node).__name__
    if name != "SelectBackward0" or node._saved_dim != 0:
        return name
    takes_sample = node._saved_self_sym_sizes[0] == batch
    return f"{name}[{node._saved_index}]" if takes_sample else name


def _keeps_rows(node: Any) -> bool:
    """Whether an index leaves the first dimension in order: ``x[arange(B), last]``, ``x[:, i]``."""
    if type(node).__name__ != "IndexBackward0":
        return False
    first = node._saved_indices[0]
    if first is None:
        return True
    rows = torch.arange(node._saved_self_sym_sizes[0], device=first.device)
    return first.dtype == torch.int64 and first.shape == rows.shape and torch.equal(first, rows)


class Verifier:
    """Verifies a backward pass before it is used, in full whenever something about it is new."""

    def __init__(
        self,
        describe: Callable[[nn.Parameter], str],
        paused: Callable[[], AbstractContextManager[None]],
        *,
        thorough: bool,
    ) -> None:
        self._describe, self._paused, self._thorough = describe, paused, thorough
        self._known: set[Any] = set()

    def verify(self, tape: Tape, losses: Tensor) -> None:
        """Refuse losses that mix samples.

        In full when asked for, when the forward called functions or the graph has links that were
        not seen before, and when a layout is open. Where rows are picked by an index, which may
        pick others each time, one random split is probed each time. A verifier that is not
        thorough only settles layouts.
        """
        links, selects_rows = summarize_graph(losses, tape.batch, self._describe)
        kind = (frozenset(tape.functions), links)
        if tape.batch == 1:
            return
        if not self._thorough:
            _settle_layouts(tape, losses)
        elif tape.verify or kind not in self._known or tape.is_unsettled():
            _probe_in_full(tape, losses)
            with self._paused():
                for call in tape.calls:
                    check_independence(call, list(split_samples(tape.batch)))
            tape.calls.clear()  # and what they hold of the model's state
            self._known.add(kind)
        elif selects_rows:
            for half in next(split_samples(tape.batch)):
                tape.probe(losses, half.to(losses.device))


def _settle_layouts(tape: Tape, losses: Tensor) -> None:
    """Split after split, until every operation's rows can belong to samples in one way only."""
    for halves in split_samples(tape.batch):
        if not tape.is_unsettled():
            return
        for half in halves:
            tape.probe(losses, half.to(losses.device))
    tape.accept_ambiguity()


def _probe_in_full(tape: Tape, losses: Tensor) -> None:
    everything = torch.ones(tape.batch, dtype=torch.bool, device=losses.device)
    whole = tape.probe(losses, everything)
    for halves in split_samples(tape.batch):
        parts = [tape.probe(losses, half.to(losses.device)) for half in halves]
        _check_additive(whole, parts)
    tape.accept_ambiguity()


def _check_additive(
    whole: dict[SiteKey, tuple[float, float]], parts: list[dict[SiteKey, tuple[float, float]]]
) -> None:
    """Back-propagation is linear: both halves together give the whole, unless a hook meddles."""
    for key, (value, tolerance) in whole.items():
        found = sum(part.get(key, (0.0, 0.0))[0] for part in parts)
        if abs(found - value) > tolerance:
            raise SampleMixingError(
                f"samples are mixed in the backward pass: the gradients that two halves of the "
                f"batch send to {key} do not add up to those of the whole. A gradient hook scales "
                "or clips them together. Remove it; clipping is done per sample."
            )


# -- calls of a model that can be repeated with other samples ------------------------------------


@dataclass(frozen=True)
class ModelCall:
    """One call of a model (or of a part of it, by the user), to be repeated with other samples."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    autocast: torch.dtype | None
    outputs: tuple[OutputLayout, ...] = ()

    @staticmethod
    def record(
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: tuple[OutputLayout, ...],
    ) -> ModelCall:
        """The call as it is made now, with the precision in force."""
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        return ModelCall(model, args, kwargs, dtype, outputs)

    @property
    def arguments(self) -> list[Tensor]:
        """All tensors the model was called with."""
        return list(tensors_in((self.args, self.kwargs)))

    def repeat(
        self, choose: Callable[[Any], Any], *, evaluating: bool = False, seed: int | None = None
    ) -> tuple[Node, dict[str, Tensor]]:
        """What it returns with what ``choose`` makes of its arguments, and the buffers after it.

        Parameters that are still all but zero get random values: mixing would hide behind them.
        ``seed`` is for all generators; by default they go on from where they are, in every run.
        """
        args, kwargs = choose((self.args, self.kwargs))
        precision = torch.autocast("cpu", self.autocast, enabled=self.autocast is not None)
        with (
            preserve_state(self.model, self._state),
            precision,
            self._randomized(),
            mark_repeating(),
        ):
            if evaluating:
                self.model.eval()
            if seed is not None:
                seed_all(self.model, seed)
            outputs = self.model(*args, **kwargs)
            buffers = {
                f"{name}{place}": part.clone()
                for name, buffer in self.model.named_buffers()
                for place, part in dense_parts(buffer).items()
            }
        return parse_output(outputs), buffers

    @cached_property
    def _state(self) -> ModelState:
        """Found once: every run puts it back."""
        return ModelState(self.model)

    @contextmanager
    def _randomized(self) -> Iterator[None]:
        """Each parameter once, wherever and however often the model holds it."""
        present = [(parameter, parameter.data) for parameter, _ in self._random_values]
        try:
            for parameter, values in self._random_values:
                parameter.data = values
            yield
        finally:
            for parameter, values in present:
                parameter.data = values

    @cached_property
    def _random_values(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Found once: no run changes parameters."""
        return _randomize_near_zero_parameters(self.model)


def _randomize_near_zero_parameters(model: nn.Module) -> list[tuple[nn.Parameter, Tensor]]:
    """Other values for them, on the scale of an initialization: large ones would overflow."""
    generator = torch.Generator().manual_seed(0)
    return [
        (p, (torch.randn(p.shape, generator=generator) * scale).to(p.data))
        for p in model.parameters()
        if p.requires_grad and p.numel() and _is_near_zero(p)
        for scale in (1.0 if p.ndim < 2 else 1 / math.sqrt(p[0].numel()),)
    ]


def _is_near_zero(parameter: Tensor) -> bool:
    values = parameter.detach()
    low, high = torch.aminmax(torch.view_as_real(values) if values.is_complex() else values)
    return bool(max(-low, high) < _NEAR_ZERO)
