"""Whether a model treats its samples independently: replace some, and the others must not notice.

Probes (see ``layout``) find mixing through gradients, down to the last bit, but only above the
first trainable parameter and only where gradients flow. This looks at the forward itself: half of
the samples are replaced by copies of another one, and the outputs of the rest are compared; then
all samples change places, and so must their outputs; then some are left out. It finds batch
statistics on the raw input, detached ones, anything done to integer ids, buffers that keep
something of the data, and what depends on a sample's place in the batch or on its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quietgrad.capture.compare import (
    Branch,
    Node,
    agree,
    agree_across_sizes,
    agree_throughout,
    coarsest_bits,
    is_list_of,
    leaves,
    lists_of,
    map_tensors,
    replace_others,
    tensors_in,
)
from quietgrad.capture.layout import Layout, OutputLayout, exact_layouts, folded_layouts
from quietgrad.capture.refusals import raw_data_refusal
from quietgrad.errors import QuietgradError, SampleMixingError, UnsupportedOperationError

if TYPE_CHECKING:
    from quietgrad.capture.verification import ModelCall

Splits = Sequence[tuple[Tensor, Tensor]]

# Draws that differ between two samples are equally likely the other way round: 2 ** -20 is left.
_SEEDS = 20


def check_independence(call: ModelCall, splits: Splits) -> None:
    """Refuse a model whose outputs for some samples depend on other samples or on their places.

    ``splits`` are halves of the batch; each half is replaced once.
    """
    batch = len(splits[0][0])
    complaints = []
    for layout in list_input_layouts(call, batch):
        complaint = _Examination(call, layout).complaint(splits)
        if complaint is None:
            return  # where the samples could be in several places, one of them must do
        complaints.append(complaint)
    if complaints:
        raise complaints[0]
    if any(output.holds_samples(batch) for output in call.outputs):
        raise UnsupportedOperationError(
            f"the model ({type(call.model).__name__}) returns something for each of the {batch} "
            "samples, and no tensor that it is called with holds them: it gets them in another way "
            "(an array, an object, an attribute), so that it cannot be verified that it keeps them "
            "apart. Pass the samples as tensors, or as a list with one tensor for each."
        )


@dataclass(frozen=True)
class _Examination:
    """Runs of one call, with one layout of its arguments."""

    call: ModelCall
    layout: InputLayout

    def complaint(self, splits: Splits) -> QuietgradError | None:
        """What is wrong with the model, if anything is."""
        unchanged = self.layout.select(torch.arange(self.layout.batch))
        before, buffers = self.call.repeat(unchanged)
        for kept in (half for halves in splits for half in halves):
            after, written = self.call.repeat(self.layout.select(replace_others(kept)))
            for name, value in buffers.items():
                if name in written and not agree(value, written[name]):
                    raise raw_data_refusal(name)
            rest = kept.nonzero().flatten()
            if not self._comparison(len(kept), rest, rest).holds(before, after):
                return _mixed(self._kind)
        if not self._is_verifiable(before):
            return _nothing_to_compare(self._kind)
        return self._complaint_of_places(evaluating=True) or self._complaint_of_places(
            evaluating=False
        )

    def _complaint_of_places(self, *, evaluating: bool) -> QuietgradError | None:
        """What changes when samples change places, or when there are fewer."""
        everyone = torch.arange(self.layout.batch)
        before, again = (self._run(everyone, evaluating, seed) for seed in (0, 1))
        if not agree_throughout(before, again):
            return None  # draws at random: a sample's draws are another's in another place
        for samples, complain in self._rearranged():
            after = self._run_if_possible(samples, evaluating)
            if after is None or self._is_rearranged(before, after, samples):
                continue
            if self._is_random(everyone, before, evaluating):
                return None
            if not self._is_random(samples, after, evaluating):
                return complain(self._kind)
        return None

    def _rearranged(self) -> Iterator[tuple[Tensor, Callable[[str], QuietgradError]]]:
        """Leaving out one is what privacy is about; half of them is seen in large batches too."""
        batch = self.layout.batch
        yield torch.arange(batch).roll(1), _placed
        for count in sorted({batch - 1, batch // 2}):
            yield torch.arange(count), _counted

    def _is_random(self, samples: Tensor, first: Node, evaluating: bool) -> bool:
        """Whether it draws after all: rare draws, as of a small dropout, can be alike twice."""
        runs = (self._run(samples, evaluating, seed) for seed in range(2, 2 + _SEEDS))
        return any(not agree_throughout(first, run) for run in runs)

    def _run_if_possible(self, samples: Tensor, evaluating: bool) -> Node | None:
        try:
            return self._run(samples, evaluating, 0)
        except Exception:
            if len(samples) == self.layout.batch:
                raise
            return None  # a model that is made for one size of batch says so in its own way

    def _run(self, samples: Tensor, evaluating: bool, seed: int) -> Node:
        chosen = self.layout.select(samples)
        return self.call.repeat(chosen, evaluating=evaluating, seed=seed)[0]

    def _is_rearranged(self, before: Node, after: Node, samples: Tensor) -> bool:
        """Whether a run with these samples gave what all together gave for each of them."""
        count = len(samples)
        return self._comparison(count, samples, torch.arange(count)).holds(before, after)

    def _comparison(self, count: int, old: Tensor, new: Tensor) -> _OutputComparison:
        bits = coarsest_bits(self.call.model.parameters())
        return _OutputComparison(self.call.outputs, self.layout.batch, count, old, new, bits)

    def _is_verifiable(self, node: Node) -> bool:
        """Whether samples were told apart in something that losses can depend on."""
        if not any(p.requires_grad for p in self.call.model.parameters()):
            return True
        return _tells_apart(node, _match(node, self.call.outputs), self.layout.batch)

    @property
    def _kind(self) -> str:
        return type(self.call.model).__name__


def _mixed(kind: str) -> QuietgradError:
    return SampleMixingError(
        f"samples are mixed: outputs of the model ({kind}) for some samples, or their shape, "
        "changed when other samples of the batch were replaced. Its forward computes something "
        "across the batch: statistics (also detached ones), a length or a set of all samples, a "
        "cache of earlier samples, or an operation over the batch dimension. Compute it per "
        "sample, or from public data kept in buffers."
    )


def _placed(kind: str) -> QuietgradError:
    return SampleMixingError(
        f"outputs of the model ({kind}) depend on a sample's place in the batch: when samples "
        "changed places, their outputs changed. Removing one sample would then change the "
        "gradients of all behind it. Something is indexed by the batch dimension; a "
        "sequence-first layer (a positional encoding, say) in a batch-first model is the usual "
        "cause."
    )


def _counted(kind: str) -> QuietgradError:
    return SampleMixingError(
        f"outputs of the model ({kind}) depend on the number of samples: with some left out, "
        "those of the others changed. Something is divided or scaled by the size of the batch. "
        "Use a constant instead."
    )


def _nothing_to_compare(kind: str) -> QuietgradError:
    return UnsupportedOperationError(
        f"the model ({kind}) is called with samples and returns nothing in which they can be told "
        "apart, so that it cannot be verified that it keeps them apart: its results leave it in "
        "another way (an attribute, a closure), or as rows of all samples one after the other. "
        "Return them from the forward, as tensors with a dimension for the samples or as a list "
        "with one entry for each."
    )


# -- where the samples are in the arguments ------------------------------------------------------


@dataclass(frozen=True)
class InputLayout:
    """Where the samples are in the arguments of a call, and which tensors are shared by all."""

    main: Layout
    folded: bool = False
    squares_are_shared: bool = False
    in_lists: bool = False

    @property
    def batch(self) -> int:
        """The number of samples."""
        return self.main.batch

    def select(self, samples: Tensor) -> Callable[[Any], Any]:
        """Replaces sample ``i`` of arguments by ``samples[i]``, of which there may be fewer."""

        def from_list(entries: list[Any]) -> list[Any] | None:
            if not self.in_lists or not is_list_of(self.batch, entries):
                return None
            return [map_tensors(Tensor.clone, entries[place]) for place in samples.tolist()]

        return lambda tree: map_tensors(lambda x: self._select(x, samples), tree, from_list)

    def _select(self, tensor: Tensor, samples: Tensor) -> Tensor:
        exact = exact_layouts(tensor, self.batch)
        if len(exact) > 1 and self.squares_are_shared:
            return tensor.clone()
        size = tensor.shape[self.main.dim] if self.main.dim < tensor.ndim else 0
        if size == self.batch or (self.folded and size > 0 and size % self.batch == 0):
            return self.main.select(tensor, samples)
        # Ids of positions often come as a batch of one; data with one step in front do not.
        is_shared = size == 1 and not tensor.is_floating_point()
        return exact[0].select(tensor, samples) if exact and not is_shared else tensor.clone()


def list_input_layouts(call: ModelCall, batch: int) -> list[InputLayout]:
    """Those that are possible, the most natural ones first."""
    tree = (call.args, call.kwargs)
    lists = list(lists_of(batch, tree))
    if not lists:
        return _of_tensors(call.arguments, batch)
    beside: list[Tensor] = []
    map_tensors(
        beside.append, tree, lambda entries: entries if is_list_of(batch, entries) else None
    )
    plain = _of_tensors(beside, batch) or [InputLayout(Layout(batch))]
    layouts = [replace(layout, in_lists=True) for layout in plain]
    if all(exact_layouts(tensor, batch) for entries in lists for tensor in tensors_in(entries)):
        # As many modalities as samples, say: each entry holds all samples itself.
        layouts = _of_tensors(call.arguments, batch) + layouts
    return layouts


def _of_tensors(arguments: list[Tensor], batch: int) -> list[InputLayout]:
    by_tensor = [exact_layouts(tensor, batch) for tensor in arguments]
    exact = [layout for layouts in by_tensor for layout in layouts]
    folded = [layout for tensor in arguments for layout in folded_layouts(tensor, batch)]
    counts = [len(layouts) for layouts in by_tensor]
    found = [InputLayout(layout) for layout in exact]
    if 1 in counts and max(counts) > 1:
        found += [InputLayout(layout, squares_are_shared=True) for layout in exact]
    found += [InputLayout(layout, folded=True) for layout in folded]
    return list(dict.fromkeys(found))


# -- comparing what was returned -----------------------------------------------------------------

Known = list[OutputLayout | None]
"""What probes have found out about each tensor that was returned, if anything."""


@dataclass(frozen=True)
class _OutputComparison:
    """Compares a run of ``batch`` samples with one of ``count``.

    Samples ``old`` of the first are samples ``new`` of the second.
    """

    known: Sequence[OutputLayout]
    batch: int
    count: int
    old: Tensor
    new: Tensor
    bits: int = 64

    def holds(self, before: Node, after: Node) -> bool:
        """Whether these samples' outputs are the same, in some layout of each output."""
        return self._same(before, after, _match(before, self.known))

    def _same(self, before: Node, after: Node, rows: Known) -> bool:
        if isinstance(before, Tensor) or isinstance(after, Tensor):
            if isinstance(before, Tensor) and isinstance(after, Tensor):
                return self._same_rows(before, after, rows[0])
            return False
        parts = _divide(before, rows)
        if self._is_one_for_each(before, after, parts):
            if self._same_entries(before, after):
                return True
            if any(known is not None and known.was_reached for known in rows):
                return False  # probes have told that each sample has its own
        if len(before.children) != len(after.children):
            return False
        pairs = zip(before.children, after.children, parts, strict=True)
        return all(self._same(one, other, part) for one, other, part in pairs)

    def _same_rows(self, before: Tensor, after: Tensor, rows: OutputLayout | None) -> bool:
        layouts = _allowed_layouts(before, rows, self.batch)
        if self.count != self.batch:
            return self._same_of_fewer(before, after, rows, layouts)
        if before.shape != after.shape:
            return False
        probed = any(known.is_probed for known in self.known)
        if probed and rows is not None and not rows.is_probed and torch.equal(before, after):
            return True  # a table, with no samples in it: no loss sends it gradients
        return not layouts or any(
            agree(layout.select(before, self.old), layout.select(after, self.new), self.bits)
            for layout in layouts
        )

    def _same_of_fewer(
        self, before: Tensor, after: Tensor, rows: OutputLayout | None, layouts: list[Layout]
    ) -> bool:
        if not layouts or not before.is_floating_point():
            return True
        if before.shape == after.shape and (rows is None or not rows.was_reached):
            return True  # a table, of a size that is a multiple of the batch by chance
        return any(
            agree_across_sizes(layout.select(before, self.old), after, self.bits)
            for layout in layouts
        )

    def _is_one_for_each(self, before: Branch, after: Branch, parts: list[Known]) -> bool:
        lists = before.is_list and after.is_list and len(after.children) == self.count
        return lists and _has_one_for_each(before, parts, self.batch)

    def _same_entries(self, before: Branch, after: Branch) -> bool:
        same = partial(agree if self.count == self.batch else _agree_of_fewer, bits=self.bits)
        return all(
            agree_throughout(before.children[one], after.children[other], same)
            for one, other in zip(self.old.tolist(), self.new.tolist(), strict=True)
        )


def _allowed_layouts(tensor: Tensor, rows: OutputLayout | None, batch: int) -> list[Layout]:
    """Where the samples can be in an output: as probes of the losses left it, if they did."""
    layouts = exact_layouts(tensor, batch) + folded_layouts(tensor, batch)
    return [layout for layout in layouts if rows is None or rows.allows(layout)]


def _tells_apart(node: Node, rows: Known, batch: int) -> bool:
    """Whether samples have their own part of something that losses can depend on."""
    if isinstance(node, Tensor):
        known = rows[0]
        return known is None or (known.is_probed and bool(_allowed_layouts(node, known, batch)))
    parts = _divide(node, rows)
    if _has_one_for_each(node, parts, batch) and any(k is None or k.is_probed for k in rows):
        return True
    return any(_tells_apart(*pair, batch) for pair in zip(node.children, parts, strict=True))


def _has_one_for_each(node: Branch, parts: list[Known], batch: int) -> bool:
    """Whether it is a list of one entry for each sample, as far as probes can tell."""
    return (
        node.is_list
        and len(node.children) == batch
        and all(
            known is None or known.may_belong_to(sample)
            for sample, part in enumerate(parts)
            for known in part
        )
    )


def _match(node: Node, known: Sequence[OutputLayout]) -> Known:
    """What is known of each tensor that was returned, if it is as many as in the call itself."""
    count = sum(1 for _ in leaves(node))
    return list(known) if len(known) == count else [None] * count


def _divide(node: Branch, rows: Known) -> list[Known]:
    parts, start = [], 0
    for child in node.children:
        end = start + sum(1 for _ in leaves(child))
        parts.append(rows[start:end])
        start = end
    return parts


def _agree_of_fewer(left: Tensor, right: Tensor, bits: int) -> bool:
    return not left.is_floating_point() or agree_across_sizes(left, right, bits)
