"""When and how it is verified that samples are independent and rows belong to whom they should."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from quietgrad.capture.choice import split_samples
from quietgrad.capture.collation import check_collation
from quietgrad.capture.independence import RecordedCall, check_independence, check_single
from quietgrad.capture.layout import Probe
from quietgrad.capture.owners import read_powers
from quietgrad.capture.repetition import FactorRecorder, Recapture
from quietgrad.capture.samples import Arguments, ConstantArguments
from quietgrad.capture.tape import stray_gradient
from quietgrad.errors import EscapedGradientError, LossError, SampleMixingError

if TYPE_CHECKING:
    from quietgrad.capture.layout import SiteKey
    from quietgrad.capture.tape import Arrival, Site, Tape

# Operations that pick rows by an index computed at run time: which rows go where may differ from
# batch to batch though the graph looks the same.
_SELECTIONS = tuple(
    "Index Gather Scatter MaskedSelect MaskedScatter Take Sort Topk Unique Put SegmentReduce "
    "EmbeddingBag PackPadded Nested Sparse Repeat".split()
)

Frequency = Literal["default", "every", "once"]
"""How often it is verified again what was verified before."""


class Schedule:
    """Which micro-batches are verified, besides those that do something new.

    The first one always is; then micro-batch ``t`` with probability ``max(1/t, 1/100)``, drawn from
    the operating system's entropy, so that nothing can be aligned with it. What is due stays due
    until it is done: a micro-batch of one sample shows less than one of several.
    """

    _LEAST = 0.01

    def __init__(self, frequency: Frequency = "default") -> None:
        if frequency not in get_args(Frequency):
            raise ValueError(
                f"verification={frequency!r} is not valid: expected one of {get_args(Frequency)}"
            )
        self._frequency = frequency
        self._random = secrets.SystemRandom()
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


# -- kinds of graphs -----------------------------------------------------------------------------

Links = frozenset[tuple[str, ...]]
"""What kinds of nodes a graph has and how they follow each other, whatever their number."""


class Graph(NamedTuple):
    """What is known of a graph before anything is back-propagated.

    Attributes:
        links: its kind.
        selects_rows: whether rows are picked by numbers that may be others in the next batch.
        orders_rows: whether rows are picked at all; a repeat may pick others.
    """

    links: Links
    selects_rows: bool
    orders_rows: bool


def summarize_graph(losses: Tensor, tape: Tape, describe: Callable[[nn.Parameter], str]) -> Graph:
    """Look at all nodes; refused if a parameter would get a gradient."""
    if losses.grad_fn is None:
        raise LossError("the losses are a leaf tensor: they were not computed by the model.")
    links: set[tuple[str, ...]] = set()
    selects = orders = False
    for node in _nodes(losses):
        _refuse_leaf(node, tape, describe)
        _refuse_stray(node, tape)
        children = [_label(child, nr) for child, nr in node.next_functions if child is not None]
        label = _label(node)
        links.add((label, *children))
        is_selection = _selects_rows(node)
        orders = orders or is_selection or label.endswith(")")
        selects = selects or (is_selection and not _keeps_rows(node))
    return Graph(frozenset(links), selects, orders)


def _nodes(losses: Tensor, ends: Collection[Any] = ()) -> Iterator[Any]:
    """All nodes of a graph, but for those that are only behind its ``ends``."""
    seen = {losses.grad_fn, *ends}
    stack: list[Any] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


def _refuse_leaf(node: Any, tape: Tape, describe: Callable[[nn.Parameter], str]) -> None:
    """What would receive a gradient that is neither clipped nor covered by noise."""
    variable = getattr(node, "variable", None)
    if variable is None or variable is tape.token:
        return
    if not isinstance(variable, nn.Parameter):
        if tape.is_argument(variable) or (variable.ndim and len(variable) == tape.batch):
            return  # data: nothing is sent there
        raise EscapedGradientError(
            f"a tensor of shape {tuple(variable.shape)} that requires gradients is no parameter of "
            "the model: its gradient would be the sum over all samples, without clipping and "
            "without noise. Register it in the model as nn.Parameter and use it inside the "
            "forward, or detach it."
        )
    raise EscapedGradientError(
        f"{describe(variable)} would receive an ordinary gradient: it is used outside the "
        "model's forward (in the loss, or through model.forward(...) instead of model(...)) or "
        "inside something that hides from the capture, the model ran in eval mode, or it "
        "belongs to a criterion and not to the model. Use parameters only inside a forward "
        "called as model(...), after model.train()."
    )


def _refuse_stray(node: Any, tape: Tape) -> None:
    """A graph from another recording: its parameters would get nothing from this one."""
    site = getattr(node, "site", None)
    if site is not None and not tape.owns(site):
        raise stray_gradient(f"{site.parameters} ({site.key})")


def _label(node: Any, output: int = 0) -> str:
    """A node's name, with the place of the rows that it takes, or the order that it puts them in.

    Samples may be taken out one by one in any order, though the graph looks the same otherwise.
    """
    name = type(node).__name__
    details = _DETAILS.get(name)
    if details is None:
        return name
    values = tuple(getattr(node, detail) for detail in details)
    if name in _OF_ROWS:
        sizes = getattr(node, "_saved_self_sym_sizes", None)
        if not _is_row_dim(node._saved_dim, sizes):
            return name
        values = (*values, output)
    return f"{name}{values}"


_DETAILS = {
    "SelectBackward0": ("_saved_index",),
    "SplitBackward0": ("_saved_split_size",),
    "UnbindBackward0": (),
    "FlipBackward0": ("_saved_dims",),
    "RollBackward0": ("_saved_dims", "_saved_shifts"),
    "PermuteBackward0": ("_saved_dims",),
}
_OF_ROWS = ("SelectBackward0", "SplitBackward0", "UnbindBackward0")


def _is_row_dim(dim: int, sizes: Sequence[int] | None) -> bool:
    """Whether this is the first dimension, but for those of size one."""
    if sizes is None:
        return dim == 0
    first = next((place for place, size in enumerate(sizes) if size != 1), 0)
    return dim in (first, 2**64 - len(sizes) + first)  # negative ones are given without a sign


def _selects_rows(node: Any) -> bool:
    """Whether a node picks rows by numbers that may be others each time."""
    name = type(node).__name__
    if name.startswith(_SELECTIONS):
        return True
    if name == "SliceBackward0":
        sizes = node._saved_self_sym_sizes
        if not _is_row_dim(node._saved_dim, sizes):
            return False
        rows = next((size for size in sizes if size != 1), 1)
        return bool(node._saved_start) or not rows <= node._saved_end < 2**63
    if name == "SplitWithSizesBackward0":
        is_even = len(set(node._saved_split_sizes)) == 1
        return _is_row_dim(node._saved_dim, node._saved_self_sym_sizes) and not is_even
    return False


def _keeps_rows(node: Any) -> bool:
    """Whether an index leaves the first dimension in order: ``x[arange(B), last]``, ``x[:, i]``."""
    if type(node).__name__ != "IndexBackward0":
        return False
    first = node._saved_indices[0]
    if first is None:
        return True
    rows = torch.arange(node._saved_self_sym_sizes[0], device=first.device)
    return first.dtype == torch.int64 and first.shape == rows.shape and torch.equal(first, rows)


# -- verification --------------------------------------------------------------------------------


class Verifier:
    """Verifies a backward pass before it is used, in full whenever something about it is new.

    Args:
        describe: names a parameter.
        repeating: in it, calls may be repeated; it leaves the model as it was, and gives a tape for
            each repeat.
        on_probed: called when gradients have been back-propagated, before calls are repeated; it
            may refuse what hooks did meanwhile.
        thorough: whether independence is verified, and not only which rows belong to whom.
    """

    def __init__(
        self,
        describe: Callable[[nn.Parameter], str],
        repeating: Callable[[], AbstractContextManager[Recapture]],
        on_probed: Callable[[], None],
        *,
        thorough: bool,
    ) -> None:
        self._describe, self._repeating, self._thorough = describe, repeating, thorough
        self._on_probed = on_probed
        self._known: set[Any] = set()
        self._earlier: list[Arguments] = []  # of the calls in the last micro-batch of one sample
        self._constants = ConstantArguments()
        self.needs_snapshots = False
        self.is_decisive = True  # a first sample alone cannot be compared with another one

    def verify(self, tape: Tape, losses: Tensor) -> list[Arrival] | None:
        """Refuse losses that mix samples.

        It is when asked for, when the forward called functions or the graph has links that were not
        seen before, and when a layout is open. Where rows are picked by an index, which may pick
        others each time, layouts are probed each time. A verifier that is not thorough only settles
        layouts.

        Returns:
            The gradients of all losses, if independence was verified of them; None if not.
        """
        graph = summarize_graph(losses, tape, self._describe)
        kind = (frozenset(tape.functions), graph.links)
        for call in tape.calls:
            call.orders_rows = graph.orders_rows
        try:
            return self._verify(tape, losses, kind, selects_rows=graph.selects_rows)
        finally:
            self._constants.note(tape.calls)

    def _verify(
        self, tape: Tape, losses: Tensor, kind: Any, *, selects_rows: bool
    ) -> list[Arrival] | None:
        if not self._thorough:
            _settle_layouts(tape, losses)
            return None
        if tape.batch == 1:
            arguments = [(call.args, call.kwargs) for call in tape.calls]
            whole = tape.probe(losses, _ask_all(losses)) if tape.verify else None
            if whole is not None:
                self._examine(tape, losses, whole, is_new=False)
            self.is_decisive, self._earlier = bool(self._earlier), arguments
            return whole
        if tape.verify or kind not in self._known or tape.is_unsettled():
            whole, self.is_decisive = probe_layouts(tape, losses), True
            self._examine(tape, losses, whole, is_new=kind not in self._known)
            self._known.add(kind)
            return whole
        return probe_layouts(tape, losses) if selects_rows or tape.has_owned_rows() else None

    def _examine(
        self, tape: Tape, losses: Tensor, whole: Sequence[Arrival], *, is_new: bool
    ) -> None:
        """Repeat every call of the model."""
        self._on_probed()
        self.needs_snapshots |= any(call.leaves_traces for call in tape.calls)
        for call in tape.calls:
            call.note_transient()
        only = len(tape.calls) == 1
        shared = self._constants.find(tape.calls)
        ends = {node for call in tape.calls for node in call.ends}
        is_bypassed = losses.grad_fn not in ends and any(
            hasattr(node, "site") for node in _nodes(losses, ends)
        )
        is_first, has_owned_rows = not self._known, tape.has_owned_rows()
        with self._repeating() as recapture:
            for number, call in enumerate(tape.calls):
                recorder = FactorRecorder(tape)
                for each in whole:
                    if each.site.call == number or (only and call.with_gradients):
                        recorder(each)
                recorded = RecordedCall(
                    call,
                    recorder.factors,
                    recapture,
                    tape.batch,
                    is_bypassed,
                    shared,
                    has_owned_rows,
                )
                if tape.batch == 1:
                    is_alike = len(self._earlier) == len(tape.calls)
                    check_single(recorded, self._earlier[number] if is_alike else None)
                else:
                    check_independence(recorded, is_new=is_new, is_first=is_first)
                    if tape.collation is not None and (is_new or secrets.randbelow(4) == 0):
                        check_collation(recorded, tape.collation, is_first=is_first)
        for call in tape.calls:
            call.state = None  # it may be large
            call.after = call.before = None


def _ask_all(losses: Tensor) -> Probe:
    return Probe(torch.ones(len(losses), dtype=losses.dtype, device=losses.device))


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
    if not _scale_by_powers(tape, losses, whole):
        for call in tape.calls:
            for output in call.outputs:
                output.forget()
        _leave_out_halves(tape, losses, whole)
    tape.accept_ambiguity()
    return whole


def _scale_by_powers(tape: Tape, losses: Tensor, whole: Sequence[Arrival]) -> bool:
    """Whether all gradients scale with their sample's loss, in some layout of each site."""

    def run(seeds: Tensor, observe: Callable[[Arrival], object]) -> None:
        probe = Probe(seeds.to(losses.device, losses.dtype), is_strict=True)
        tape.propagate([losses], [probe.seeds], observe, probe=probe)

    return read_powers(tape.layouts, tape.batch, whole, run)


def _leave_out_halves(tape: Tape, losses: Tensor, whole: Sequence[Arrival]) -> None:
    total = _project_all(whole)
    for halves in split_samples(tape.batch):
        parts = []
        for half in halves:
            arrivals = tape.probe(losses, Probe(half.to(losses.device, losses.dtype)))
            _refuse_mixing(tape, arrivals, half.to(losses.device))
            parts.append(_project_all(arrivals))
        _check_additive(total, parts)


def _refuse_mixing(tape: Tape, arrivals: Sequence[Arrival], seeded: Tensor) -> None:
    clean: SiteKey | None = None
    for site, grad, *_ in arrivals:
        verdict = tape.layouts.observe(site.key, grad, site.dims, seeded)
        if verdict is False:
            raise SampleMixingError(_mixing_message(site, clean))
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


def _mixing_message(site: Site, clean: SiteKey | None) -> str:
    after = f" and {clean}" if clean is not None else " and the losses"
    return (
        f"samples are mixed: the loss of one sample sends gradient to rows of other samples at "
        f"{site.key} (parameter {site.parameters}). Something between it{after} combines samples: "
        "batch statistics, a contrastive or batch-normalised loss, an operation across the batch "
        "dimension, or a parameter used without a dimension that runs over the samples. Use "
        "per-sample operations (GroupNorm or LayerNorm instead of BatchNorm) and a loss that has "
        "one independent entry per sample."
    )
