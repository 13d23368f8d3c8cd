"""When and how it is verified that samples are independent and rows belong to whom they should."""

from __future__ import annotations

import math
import random
import secrets
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from quietgrad.capture.choice import draw_below, on_any, split_samples
from quietgrad.capture.collation import check_collation, check_targets
from quietgrad.capture.compare import is_same, tensors_in
from quietgrad.capture.graph import Graph, list_edges, list_nodes, refuse_scaler, summarize_graph
from quietgrad.capture.independence import (
    EarlierCall,
    MovedWeights,
    RecordedCall,
    check_independence,
    check_single,
)
from quietgrad.capture.layout import Probe
from quietgrad.capture.outputs import is_reordered
from quietgrad.capture.owners import read_powers
from quietgrad.capture.repetition import FactorRecorder, Factors, Recapture
from quietgrad.capture.samples import copy_part, rebuild_arguments
from quietgrad.errors import SampleMixingError, UnsupportedOperationError
from quietgrad.factors.base import Verdict, any_of, send, verdict_of

if TYPE_CHECKING:
    from quietgrad.capture.layout import SiteKey
    from quietgrad.capture.owners import OwnedLayout
    from quietgrad.capture.tape import Arrival, Site, Tape
    from quietgrad.factors.membership import Membership

_CALLER = 10  # stack frames from a warning to the user's call of engine.backward

Frequency = Literal["default", "every", "once"]
"""How often it is verified again what was verified before."""


class Schedule:
    """Which micro-batches are verified, besides those that do something new.

    The first one always is; then micro-batch ``t`` with probability ``max(1/t, 1/100)``, drawn from
    the operating system's entropy, so that nothing can be aligned with it. What is due stays due
    until it is done: a micro-batch of one sample shows less than one of several.
    """

    _LEAST = 0.01

    def __init__(
        self, frequency: Frequency = "default", source: random.Random | None = None
    ) -> None:
        if frequency not in get_args(Frequency):
            raise ValueError(
                f"verification={frequency!r} is not valid: expected one of {get_args(Frequency)}"
            )
        self._frequency = frequency
        self._random = source or secrets.SystemRandom()
        self._count = 0
        self._is_due = {"single": True, "several": True}

    def is_due(self, samples: int) -> bool:
        """Whether the next micro-batch, of so many samples, is to be verified."""
        self._count += 1
        if self._frequency == "every" or (
            self._frequency == "default"
            and self._random.random() < max(1 / self._count, self._LEAST)
        ):
            self._is_due = {"single": True, "several": True}
        return self._is_due["several" if samples > 1 else "single"]

    def note_done(self, samples: int) -> None:
        """One of so many samples was verified."""
        self._is_due["single"] = False
        if samples > 1:
            self._is_due["several"] = False


class ConstantArguments:
    """Finds arguments that stay the same while samples change: scales, sizes, matrices.

    They may be as long as a batch by chance.
    """

    _LARGEST = 4096  # entries; what is larger is not looked at

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], Any] = {}

    def find(self, calls: Sequence[Any]) -> Callable[[], frozenset[int]]:
        """Tells, by id, the parts of these calls' arguments that were the same in the calls before.

        Nothing can be told of a call whose first tensor was the same, too: its samples may be.
        """
        return partial(self._find, self._parts(calls), self._before)

    @staticmethod
    def _find(
        parts: dict[tuple[int, int], Any], known: dict[tuple[int, int], Any]
    ) -> frozenset[int]:
        verdicts = {place: is_same(parts[place], known[place]) for place in parts if place in known}
        same = {place for place, is_known in verdicts.items() if is_known}
        return frozenset(
            id(part)
            for place, part in parts.items()
            if place in same and (place[0], 0) in known and (place[0], 0) not in same
        )

    def note(self, calls: Sequence[Any]) -> None:
        """These were the arguments of a micro-batch."""
        found = self._parts(calls)
        self._before = {place: copy_part(part) for place, part in found.items()}

    def _parts(self, calls: Sequence[Any]) -> dict[tuple[int, int], Any]:
        found: list[Any] = []

        def note(part: Any) -> None:
            if isinstance(part, Tensor):
                found.append(part if part.numel() <= self._LARGEST else part.flatten()[:1])
            elif isinstance(part, (list, tuple, np.ndarray)):
                is_plain = next(tensors_in(part), None) is None
                found.extend([part] if is_plain and len(part) <= self._LARGEST else [])

        parts: dict[tuple[int, int], Any] = {}
        for number, call in enumerate(calls):
            found.clear()
            rebuild_arguments((call.args, call.kwargs), note)
            parts |= {(number, place): part for place, part in enumerate(found)}
        return parts


class Verifier:
    """Verifies a backward pass before it is used, in full whenever something about it is new.

    Args:
        describe: names a parameter.
        repeating: in it, calls may be repeated; it leaves the model as it was, and gives a tape for
            each repeat.
        on_probed: called when gradients have been back-propagated, before calls are repeated; it
            may refuse what hooks did meanwhile.
        on_examined: called with each call of several samples that was verified, and its number.
        moved_weights: in it a model has other weights.
        saves_room: whether another backward pass is worth less than what it frees.
        thorough: whether independence is verified, and not only which rows belong to whom.
    """

    def __init__(
        self,
        describe: Callable[[nn.Parameter], str],
        repeating: Callable[[], AbstractContextManager[Recapture]],
        on_probed: Callable[[], None],
        on_examined: Callable[[RecordedCall, Tape, int], None],
        moved_weights: MovedWeights,
        *,
        saves_room: bool,
        thorough: bool,
    ) -> None:
        self._moved_weights, self._saves_room = moved_weights, saves_room
        self._on_examined = on_examined
        self._describe, self._repeating, self._thorough = describe, repeating, thorough
        self._on_probed = on_probed
        self._known: set[Any] = set()
        self._joined: set[int] = set()  # numbers of calls with rows of several samples
        self._has_warned = False
        self._earlier: list[EarlierCall] = []  # those in the last micro-batch of one sample
        self._constants = ConstantArguments()
        self.needs_snapshots = False
        self.is_decisive = True  # a first sample alone cannot be compared with another one

    @property
    def has_verified(self) -> bool:
        """Whether some micro-batch was verified."""
        return bool(self._known or self._earlier)

    def summarize(self, tape: Tape, losses: Tensor) -> Graph:
        """What the graph behind the losses consists of; the tape and its calls are told."""
        graph = summarize_graph(losses, tape, self._describe)
        tape.selects_rows = graph.selects_rows
        for call in tape.calls:
            call.orders_rows |= graph.orders_rows
        return graph

    def wants_passes(self, tape: Tape, graph: Graph) -> bool:
        """Whether :meth:`verify` may run the model, or a backward pass, besides the one needed."""
        is_open = graph.selects_rows or tape.has_owned_rows() or tape.is_unsettled()
        is_new = self._thorough and (tape.verify or self._kind(tape, graph) not in self._known)
        return tape.verify or (tape.batch > 1 and (is_open or is_new))

    def _kind(self, tape: Tape, graph: Graph) -> Hashable:
        return frozenset(tape.functions), graph.links

    def verify(self, tape: Tape, losses: Tensor, graph: Graph) -> list[Arrival] | None:
        """Refuse losses that mix samples.

        It is when asked for, when the forward called functions or the graph has links that were not
        seen before, and when a layout is open. Where rows are picked by an index, which may pick
        others each time, layouts are probed each time. A verifier that is not thorough only settles
        layouts.

        Returns:
            The gradients of all losses, if independence was verified of them; None if not.
        """
        try:
            return self._verify(tape, losses, graph)
        except SampleMixingError as error:
            if hint := _find_option(tape):
                raise SampleMixingError(f"{error} {hint}") from None
            raise
        finally:
            self._constants.note(tape.calls)

    def _examine_probed(
        self, tape: Tape, losses: Tensor, whole: list[Arrival], *, is_new: bool
    ) -> None:
        """What is known of the recorded graph is enough from here on."""
        if self._saves_room:
            tape.free_graph(losses)
        self._on_probed()
        self._examine(tape, losses, whole, is_new=is_new)

    def _verify(self, tape: Tape, losses: Tensor, graph: Graph) -> list[Arrival] | None:
        kind = self._kind(tape, graph)
        if not self._thorough:
            _settle_layouts(tape, losses)
            return None
        if tape.batch == 1:
            calls = [((call.args, call.kwargs), tape.membership) for call in tape.calls]
            whole = tape.probe(losses, _ask_all(losses)) if tape.verify else None
            if whole is not None:
                self._examine_probed(tape, losses, whole, is_new=False)
            self.is_decisive, self._earlier = bool(self._earlier), calls
            return whole
        is_wanted = tape.verify or kind not in self._known or tape.is_unsettled()
        is_open = graph.selects_rows or tape.has_owned_rows()
        is_wanted, is_open = on_any(is_wanted, is_open)
        if is_wanted:
            whole, self.is_decisive = probe_layouts(tape, losses), True
            self._examine_probed(tape, losses, whole, is_new=kind not in self._known)
            if not tape.is_of_one:
                self._known.add(kind)
            return whole
        return probe_layouts(tape, losses) if is_open else None

    def _examine(self, tape: Tape, losses: Tensor, whole: list[Arrival], *, is_new: bool) -> None:
        """Repeat every call of the model."""
        traces = [call.leaves_traces for call in tape.calls]
        self.needs_snapshots |= any(each is True for each in traces)
        ends = {node for call in tape.calls for node in call.ends}
        edges = list_edges(losses, ends)
        for number, call in enumerate(tape.calls):
            call.note_transient()
            call.note_direct(edges)
            call.sizes = tape.list_sizes(number)
        only = len(tape.calls) == 1
        find_shared = self._constants.find(tape.calls)
        refuse_scaler(losses, ends)
        is_bypassed = losses.grad_fn not in ends and any(
            hasattr(node, "site") for node in list_nodes(losses, ends)
        )
        is_first, has_owned_rows = not self._known, tape.has_owned_rows()
        with self._repeating() as recapture:
            for number, call in enumerate(tape.calls):
                is_all = only and call.with_gradients
                recorded = RecordedCall(
                    call,
                    self._record(tape, whole, None if is_all else number),
                    recapture,
                    tape.membership,
                    self._moved_weights,
                    is_bypassed,
                    find_shared,
                    has_owned_rows,
                    number in self._joined,
                    self._saves_room,
                )
                if tape.batch == 1:
                    is_alike = len(self._earlier) == len(tape.calls)
                    check_single(recorded, self._earlier[number] if is_alike else None)
                else:
                    if check_independence(recorded, is_new=is_new, is_first=is_first):
                        self._joined.add(number)
                    if tape.collation is not None and (is_new or draw_below(8) == 0):
                        check_collation(recorded, tape.collation, is_first=is_first)
                    self._on_examined(recorded, tape, number)
        _check_targets(tape, is_new=is_new, is_first=is_first)
        self.needs_snapshots |= any(traces)
        self._warn_of_tables(tape)
        for call in tape.calls:
            call.state = None  # it may be large
            call.after = call.before = None

    def _record(self, tape: Tape, whole: list[Arrival], number: int | None) -> Factors:
        """Of the gradients at the sites of a call, or of all; what they were made of may go."""
        recorder = FactorRecorder(tape, is_probed=True)
        for place, each in enumerate(whole):
            if number is None or each.site.call == number:
                made = recorder(each)
                if made and self._saves_room:
                    whole[place] = tape.settled(each, made)
        return recorder.factors

    def _warn_of_tables(self, tape: Tape) -> None:
        """Once, of what a model returns besides and no loss may use, not even detached."""
        kinds = [type(c.model).__name__ for c in tape.calls if any(o.is_mixed for o in c.outputs)]
        if kinds and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the model ({kinds[0]}) also returns a table of pairs of samples (similarities, "
                "say), in which each depends on others. No loss gets a gradient from it. Do not "
                "use it in the losses in any other way either, not even detached: that cannot be "
                "verified, and would void the guarantee.",
                stacklevel=_CALLER,
            )


def _check_targets(tape: Tape, *, is_new: bool, is_first: bool) -> None:
    """Refuse labels that were collated across samples, where that is looked for."""
    if tape.collation is not None and tape.batch > 1 and (is_new or draw_below(8) == 0):
        check_targets(tape.calls, tape.collation, is_first=is_first)


def _find_option(tape: Tape) -> str:
    """What to say of a stock mixture of experts that returns a loss over the whole batch."""
    configs = [getattr(call.model, "config", None) for call in tape.calls]
    if not any(getattr(config, "output_router_logits", False) for config in configs):
        return ""
    return (
        "This model has output_router_logits=True: its auxiliary load-balancing loss is computed "
        "over all tokens of the batch. Set model.config.output_router_logits = False, and leave "
        "outputs.aux_loss out of the losses."
    )


def _ask_all(losses: Tensor) -> Probe:
    return Probe(torch.ones(len(losses), dtype=losses.dtype, device="cpu"))


def _settle_layouts(tape: Tape, losses: Tensor) -> None:
    """Let every operation's rows belong to samples in one way only."""
    if tape.batch > 1 and (tape.is_unsettled() or tape.has_owned_rows()):
        probe_layouts(tape, losses)


def probe_layouts(tape: Tape, losses: Tensor) -> list[Arrival]:
    """Establish which rows belong to which sample, and refuse gradients that reach others.

    Losses are multiplied by powers of two, another one for each sample: every row must be
    multiplied by its own sample's, to the last bit. Where a model does not scale like this (a hook
    that normalizes each sample's gradient, kernels that add up in any order, half precision), half
    of the losses are left out at a time, and rows of theirs must be exactly zero.

    Returns:
        The gradients of all losses, as they arrived.
    """
    whole = tape.probe(losses, _ask_all(losses))
    if _scale_by_powers(tape, losses, whole):
        settle = _ask_broken(tape, whole)
        _refuse_reordered(tape)
        settle(losses.detach())
    else:
        for call in tape.calls:
            for output in call.outputs:
                output.forget()
        _leave_out_halves(tape, losses, whole)
    tape.accept_ambiguity()
    return whole


def _ask_broken(tape: Tape, whole: Sequence[Arrival]) -> Callable[[Tensor], None]:
    """Finds rows that are not finite, and have no owner for that reason, to settle them."""
    owned = [(each.site, each.site.owners, each) for each in whole if each.site.owners is not None]
    asked = [
        (site, owners, any_of(map(owners.has_unowned, (each.grad, *each.saved))), each.grad)
        for site, owners, each in owned
        if owners is not None
    ]
    return partial(_settle_broken, tape.membership, asked)


def _settle_broken(
    membership: Membership,
    asked: Sequence[tuple[Site, OwnedLayout, Verdict, Tensor]],
    losses: Tensor,
) -> None:
    """They are those of broken losses."""
    is_broken = membership.any(~losses.isfinite())
    for site, owners, has_unowned, grad in asked:
        if not has_unowned:
            continue
        if not is_broken.any():
            raise UnsupportedOperationError(
                f"{site.key} (parameter {site.parameters}): a row without a gradient holds "
                "something that is not finite, and the losses are finite, so that it cannot be "
                "told which sample it belongs to and is to be dropped. Find out which sample makes "
                "the model overflow, and clamp what it computes."
            )
        site.owners = replace(owners, broken=is_broken.to(grad.device))


def _refuse_reordered(tape: Tape) -> None:
    """A loss that is computed of another sample's output belongs to neither of the two."""
    if not tape.has_owned_rows():
        return
    asked = [
        (call, any_of(is_reordered(output, tape.membership) for output in call.outputs))
        for call in tape.calls
    ]
    for call, is_other in asked:
        if is_other:
            raise SampleMixingError(
                f"the losses depend on outputs of the model ({type(call.model).__name__}) at other "
                "places: losses[i] was not computed of row i, but of that of another sample. "
                "Compute the losses in the order of the samples."
            )


def _scale_by_powers(tape: Tape, losses: Tensor, whole: Sequence[Arrival]) -> bool:
    """Whether all gradients scale with their sample's loss, in some layout of each site."""

    def run(seeds: Tensor, observe: Callable[[Arrival], object]) -> None:
        probe = Probe(seeds.to(losses.dtype), is_strict=True)
        gradient = tape.scaled(send(probe.seeds, losses.device))
        tape.propagate([losses], [gradient], observe, probe=probe)

    membership = tape.membership
    if not tape.selects_rows:
        return read_powers(tape.layouts, membership, whole, run)
    broken = membership.spread(membership.any(~losses.detach().isfinite()))
    are_broken = verdict_of(broken.any())
    if are_broken is not True:
        holds = read_powers(tape.layouts, membership, whole, run)
        if not are_broken:
            return holds
        for site, *_ in whole:
            site.owners = None
    return read_powers(tape.layouts, membership, whole, run, broken=broken)


def _leave_out_halves(tape: Tape, losses: Tensor, whole: Sequence[Arrival]) -> None:
    total = _project_all(whole)
    for halves in split_samples(tape.membership.samples):
        parts = []
        for half in map(tape.membership.spread, halves):
            arrivals = tape.probe(losses, Probe(half.to(losses.dtype)))
            _refuse_mixing(tape, arrivals, half)
            parts.append(_project_all(arrivals))
        _check_additive(total, parts)


def _refuse_mixing(tape: Tape, arrivals: Sequence[Arrival], seeded: Tensor) -> None:
    clean: SiteKey | None = None
    seen = [tape.layouts.observe(a.site.key, a.grad, a.site.dims, seeded) for a in arrivals]
    for (site, grad, *_), conclude in zip(arrivals, seen, strict=True):
        verdict = conclude()
        if verdict is False:
            raise SampleMixingError(
                _mixing_message(site, clean, is_half=grad.dtype == torch.float16)
            )
        clean = site.key if verdict else clean


Projections = dict["SiteKey", tuple[float, float]]
"""By site, a linear function of the gradient that arrived, and how far rounding may carry it."""


def _project_all(arrivals: Sequence[Arrival]) -> Projections:
    found: Projections = {}
    for site, grad, *_ in arrivals:
        value, tolerance = found.get(site.key, (0.0, 0.0))
        more, slack = _project(grad)
        found[site.key] = value + more, tolerance + slack
    return found


def _check_additive(whole: Projections, parts: list[Projections]) -> None:
    """Back-propagation is linear: both halves together give the whole, unless a hook meddles."""
    for key, (value, tolerance) in whole.items():
        found = sum(part.get(key, (0.0, 0.0))[0] for part in parts)
        if abs(found - value) > tolerance:
            raise SampleMixingError(
                f"samples are mixed in the backward pass: the gradients that two halves of the "
                f"batch send to {key} do not add up to those of the whole. A gradient hook scales "
                "or clips them together. Remove it; clipping is done per sample."
            )


def _project(grad: Tensor) -> tuple[float, float]:
    """A fixed linear function of a gradient, and a bound on its rounding error."""
    real = torch.view_as_real(grad.detach()) if grad.is_complex() else grad.detach()
    if not real.numel():
        return 0.0, 0.0
    rows = real.reshape(-1, real.shape[-1] if real.ndim else 1)
    rows = rows if rows.dtype == torch.float64 else rows.float()
    # A product of two functions, so that all but the last sum is left to a matrix product.
    outer, inner = (
        torch.linspace(1, 2, n, dtype=rows.dtype, device=rows.device) for n in rows.shape
    )
    value = ((rows @ inner).double() @ outer.double()).item()
    most = 4 * torch.linalg.vector_norm(rows, 1).item()
    if not math.isfinite(most) and rows.dtype == torch.float32:
        return _project(grad.double())  # too large to be added up in single precision
    return value, torch.finfo(grad.dtype).eps ** 0.5 * most


def _mixing_message(site: Site, clean: SiteKey | None, *, is_half: bool) -> str:
    after = f" and {clean}" if clean is not None else " and the losses"
    half = (
        " (In float16 rows without a dimension for the samples cannot be told apart; use bfloat16.)"
        if is_half
        else ""
    )
    return (
        f"samples are mixed: the loss of one sample sends gradient to rows of other samples at "
        f"{site.key} (parameter {site.parameters}). Something between it{after} combines samples: "
        "batch statistics, a contrastive or batch-normalised loss, an operation across the batch "
        "dimension, indices into joined rows that do not count from the sample's own first row, or "
        "a parameter used without a dimension that runs over the samples. Use "
        "per-sample operations (GroupNorm or LayerNorm instead of BatchNorm) and a loss that has "
        f"one independent entry per sample.{half}"
    )
