"""Where the samples are in what a model returned, and whether two runs agree about them.

Also whether they agree about the samples' gradients, by the factors that these are made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from quietgrad.capture.compare import (
    Branch,
    Node,
    agree,
    agree_across_sizes,
    agree_throughout,
    has_digits,
    leaves,
)
from quietgrad.capture.layout import Layout, OutputLayout, exact_layouts, possible_layouts
from quietgrad.capture.owners import OwnedLayout, ask_rows, match_rows
from quietgrad.factors.base import (
    Verdict,
    all_of,
    any_of,
    has_same_entries,
    negated,
    verdict_of,
)

if TYPE_CHECKING:
    from quietgrad.capture.repetition import Execution, Factors
    from quietgrad.capture.tape import TargetFactor
    from quietgrad.factors.base import Factor

# Of gradients that are compared entry by entry.
_FLOATS_AT_ONCE = 2**24

Known = list[OutputLayout | None]
"""What probes have found out about each tensor that was returned, if anything."""


class Seed(NamedTuple):
    """An output with which a backward pass begins, and its gradient, before or behind its hooks."""

    output: Tensor
    gradient: Tensor
    is_before_hooks: bool = False


@dataclass(frozen=True)
class OutputComparison:
    """Compares a run of ``batch`` samples with one of ``count``.

    Samples ``old`` of the first are samples ``new`` of the second. Sample ``i`` of the second is
    sample ``samples[i]`` of the first, or a copy of it. Kernels round differently unless both are
    alike in the sizes of all operations. Whole numbers are compared across sizes if ``has_whole``,
    but for a few; otherwise not, for places of rows and the like depend on the number of samples.
    With ``only_direct``, outputs get no gradient that they get by way of others.
    """

    known: Sequence[OutputLayout]
    batch: int
    count: int
    old: Tensor
    new: Tensor
    samples: Tensor
    bits: int = 64
    is_alike: bool = True
    has_whole: bool = False
    only_direct: bool = False

    def holds(self, before: Node, after: Node) -> Verdict:
        """Whether these samples' outputs are the same, in some layout of each output."""
        return self._same(before, after, _match(before, self.known))

    @property
    def unprobed(self) -> OutputComparison:
        """The same for tensors of which nothing is known."""
        return replace(self, known=())

    def seed(self, before: Node, after: Node, factors: Tensor | None = None) -> list[Seed]:
        """Outputs of the second run, each with the gradient that the first run's losses sent it.

        Sample ``new[i]`` gets the gradient of sample ``old[i]``, times its factor.
        """
        return list(self._seed(before, after, _match(before, self.known), factors))

    def _seed(
        self, before: Node, after: Node, rows: Known, factors: Tensor | None
    ) -> Iterator[Seed]:
        if isinstance(before, Tensor) or isinstance(after, Tensor):
            known = rows[0] if rows else None
            if known is not None and self.only_direct and not known.is_direct:
                return
            if isinstance(after, Tensor) and known is not None and known.gradient is not None:
                gradient = self._select(known.gradient, known, after.shape, factors)
                if gradient is not None:
                    yield Seed(after, gradient.to(after.dtype), known.is_before_hooks)
            return
        parts, others = _divide(before, rows), list(after.children)
        children, each = list(before.children), [factors] * len(others)
        if self._is_one_for_each(before, after, parts):
            order = self.old.tolist()
            children, parts = [children[i] for i in order], [parts[i] for i in order]
            each = each if factors is None else list(factors)
        for child, other, part, factor in zip(children, others, parts, each, strict=False):
            yield from self._seed(child, other, part, factor)

    def _select(
        self, gradient: Tensor, known: OutputLayout, shape: torch.Size, factors: Tensor | None
    ) -> Tensor | None:
        if factors is not None and not factors.ndim:
            return gradient * factors.to(gradient)  # all of it is one sample's
        for layout in _allowed_layouts(gradient, known, self.batch):
            chosen = layout.select(gradient, self.old)
            if factors is not None:
                chosen = chosen * self._arrange(layout).spread(factors, chosen)
            if chosen.shape == shape:
                return chosen
            if chosen.numel() == shape.numel() and self.count == 1:
                return chosen.reshape(shape)  # a batch of one may lose its dimension
        return gradient if gradient.shape == shape else None

    def _same(self, before: Node, after: Node, rows: Known) -> Verdict:
        if isinstance(before, Tensor) or isinstance(after, Tensor):
            if isinstance(before, Tensor) and isinstance(after, Tensor):
                return self._same_rows(before, after, rows[0])
            return False
        parts = _divide(before, rows)
        if self._is_one_for_each(before, after, parts):
            is_same = self._same_entries(before, after)
            if any(known is not None and known.was_reached for known in rows):
                return is_same  # probes have told that each sample has its own
            if is_same:
                return True
        if len(before.children) != len(after.children):
            return False
        pairs = zip(before.children, after.children, parts, strict=True)
        return all_of(self._same(one, other, part) for one, other, part in pairs)

    def _same_rows(self, before: Tensor, after: Tensor, rows: OutputLayout | None) -> Verdict:
        if rows is not None and rows.is_probed and _is_unused_table(before, rows, self.batch):
            is_mixed = negated(self._compare_rows(before, after, rows))
            rows.is_mixed = any_of((rows.is_mixed, is_mixed))
            return True
        return self._compare_rows(before, after, rows)

    def _compare_rows(self, before: Tensor, after: Tensor, rows: OutputLayout | None) -> Verdict:
        layouts = _allowed_layouts(before, rows, self.batch)
        if self.count != self.batch:
            return self._same_of_fewer(before, after, rows, layouts)
        if layouts and isinstance(layouts[0], OwnedLayout):
            return self._same_owned(before, after, layouts[0])
        if before.shape != after.shape:
            return False
        probed = any(known.is_probed for known in self.known)
        is_table: Verdict = False
        if probed and rows is not None and not rows.is_probed:
            # A table, with no samples in it: no loss sends it gradients.
            is_table = has_same_entries(before, after)
        if not layouts or is_table is True:
            return True
        agreeing = (
            self._agree(layout.select(before, self.old), layout.select(after, self.new))
            for layout in layouts
        )
        return any_of(chain((is_table,), agreeing))

    def _arrange(self, layout: Layout) -> Layout:
        """The layout of the second run."""
        if isinstance(layout, OwnedLayout):
            return layout.arrange(self.samples)
        return replace(layout, batch=self.count)

    def _same_owned(self, before: Tensor, after: Tensor, layout: OwnedLayout) -> Verdict:
        now = layout.arrange(self.samples)
        if before.ndim != after.ndim or now.owners.numel() != after.shape[now.dims[0]]:
            return False
        return self._agree(layout.select(before, self.old), now.select(after, self.new))

    def _agree(self, one: Tensor, other: Tensor) -> Verdict:
        same = agree if self.is_alike else agree_across_sizes
        return one.shape == other.shape and same(one, other, self.bits)

    def _same_of_fewer(
        self, before: Tensor, after: Tensor, rows: OutputLayout | None, layouts: list[Layout]
    ) -> Verdict:
        if not layouts or not self._is_compared(before):
            return True
        if before.shape == after.shape and (rows is None or not rows.was_reached):
            return True  # a table, of a size that is a multiple of the batch by chance
        return any_of(
            agree_across_sizes(layout.select(before, self.old), after, self.bits)
            for layout in layouts
        )

    def _is_compared(self, tensor: Tensor) -> bool:
        return self.has_whole or has_digits(tensor)

    def _agree_of_fewer(self, left: Tensor, right: Tensor, bits: int) -> Verdict:
        return not self._is_compared(left) or agree_across_sizes(left, right, bits)

    def _is_one_for_each(self, before: Branch, after: Branch, parts: list[Known]) -> bool:
        lists = before.is_list and after.is_list and len(after.children) == self.count
        return lists and _has_one_for_each(before, parts, self.batch)

    def _same_entries(self, before: Branch, after: Branch) -> Verdict:
        same = partial(agree if self.count == self.batch else self._agree_of_fewer, bits=self.bits)
        return all_of(
            agree_throughout(before.children[one], after.children[other], same)
            for one, other in zip(self.old.tolist(), self.new.tolist(), strict=True)
        )


def _is_unused_table(tensor: Tensor, rows: OutputLayout, batch: int) -> bool:
    """Whether it is a table of pairs of samples, as similarities are, that no loss depends on."""
    return not rows.was_reached and len(exact_layouts(tensor, batch)) > 1


def _allowed_layouts(tensor: Tensor, rows: OutputLayout | None, batch: int) -> list[Layout]:
    """Where the samples can be in an output: as probes of the losses left it, if they did."""
    layouts = possible_layouts(tensor, batch)
    if rows is not None:
        allowed = [(layout, rows.allows(layout)) for layout in layouts]
        layouts = [layout for layout, is_allowed in allowed if is_allowed]
    if layouts or rows is None or not rows.strict_evidence:
        return layouts
    owned = match_rows(rows.strict_evidence, batch)
    return [] if owned is None or not owned.keeps_places else [owned]


def is_reordered(known: OutputLayout, batch: int) -> Verdict:
    """Whether the rows of an output as long as the batch belong to losses at other places."""
    if not known.strict_evidence:
        return False
    owned, is_told = ask_rows(known.strict_evidence, batch)
    return all_of((is_told, negated(owned.keeps_places)))


def find_broken(known: Sequence[OutputLayout], batch: int) -> Tensor:
    """The samples ``[B]`` whose losses sent an output a gradient that is not finite."""
    broken = torch.zeros(batch, dtype=torch.bool, device="cpu")
    given = [(each, each.gradient) for each in known if each.gradient is not None]
    finite = [verdict_of(gradient.isfinite().all()) for _, gradient in given]
    for (each, gradient), is_finite in zip(given, finite, strict=True):
        if not is_finite:
            for layout in _allowed_layouts(gradient, each, batch)[:1]:
                broken |= layout.split(~gradient.isfinite(), 0).any(1).cpu()
    return broken


def tells_samples_apart(node: Node, known: Sequence[OutputLayout], batch: int) -> bool:
    """Whether samples have their own part of something that losses can depend on."""
    return _tells_apart(node, _match(node, known), batch)


def _tells_apart(node: Node, rows: Known, batch: int) -> bool:
    if isinstance(node, Tensor):
        known = rows[0]
        return known is None or (known.is_probed and bool(_allowed_layouts(node, known, batch)))
    parts = _divide(node, rows)
    if _has_one_for_each(node, parts, batch) and any(k is None or k.is_probed for k in rows):
        return True
    return any(_tells_apart(*pair, batch) for pair in zip(node.children, parts, strict=True))


def has_one_for_each(node: Node, known: Sequence[OutputLayout], batch: int) -> bool:
    """Whether what was returned is a list of one entry for each sample, as far as is known."""
    return isinstance(node, Branch) and _has_one_for_each(
        node, _divide(node, _match(node, known)), batch
    )


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


# -- gradients -----------------------------------------------------------------------------------

Same = Callable[[Tensor, Tensor], Verdict]
"""Whether two tensors with one row for each sample are the same but for rounding."""


def same_factors(
    before: Factors,
    run: Execution,
    old: Tensor,
    new: Tensor,
    same: Same,
    find_broken: Callable[[], Tensor],
    *,
    patient: bool,
) -> Verdict:
    """Whether samples ``old`` of a call got the same gradients as samples ``new`` of a repeat.

    On a device the host would have to wait for the comparisons of all sites before it knew whether
    there is another way to compare. So unless ``patient`` there is none: what is the same, is so,
    and whoever reads that it is not asks again, patiently. Nothing that is returned holds factors.

    Args:
        before: the factors of the call.
        run: the repeat.
        old: samples of the call.
        new: the same ones in the repeat.
        same: compares what factors are made of.
        find_broken: tells the samples ``[B]`` of the call with losses that are not finite.
        patient: whether all verdicts are to be read here.
    """
    compared, doubtful = _compare_factors(before, run.factors, old, new, same)

    def are_same_totals() -> Verdict:
        if not doubtful:
            return True
        # Rows of a broken sample have no owner that could be told.
        whole = ~find_broken()[old]
        factors, pair = (before, run.factors), (old[whole], new[whole])
        return all_of(_is_same_total(name, *factors, *pair, same) for name in sorted(doubtful))

    made = next((each for found in before.values() for each in found or ()), None)
    if made is not None and made.factor.device.type != "cpu" and not patient:
        known = [verdict for _, verdict in compared if verdict is not None]
        doubtful |= {n for one, each in compared if each is None for n in one.target.names}
        is_same = all_of((*known, are_same_totals()))
        if is_same is not False:
            return is_same
    for one, verdict in compared:
        # With fewer samples another one may be at the first of several alike sites.
        if verdict is not None and not verdict and run.is_alike and torch.equal(old, new):
            return False
        doubtful.update(() if verdict else one.target.names)
    doubtful -= run.unknown
    return bool(are_same_totals())


def _compare_factors(
    before: Factors, after: Factors, old: Tensor, new: Tensor, same: Same
) -> tuple[list[tuple[TargetFactor, Verdict | None]], set[str]]:
    """Verdicts of factors at the same sites; parameters of which only totals can be compared."""
    compared: list[tuple[TargetFactor, Verdict | None]] = []
    doubtful: set[str] = set()
    for key in before.keys() | after.keys():
        ones, others = before.get(key, []), after.get(key, [])
        if ones is None or others is None:
            continue
        # Rows of the same sample may be at another site of the same kind in each run.
        if len(ones) != len(others) or any(each.is_owned for each in (*ones, *others)):
            doubtful.update(name for each in (*ones, *others) for name in each.target.names)
            continue
        for one, other in zip(ones, others, strict=True):
            compared.append((one, _is_same_factor(one.select(old), other.select(new), same)))
    return compared, doubtful


def _is_same_factor(one: TargetFactor, other: TargetFactor, same: Same) -> Verdict | None:
    """Whether two factors are made of the same tensors; None if they are of different shapes."""
    ones, others = one.tensors, other.tensors
    if [t.shape for t in ones] != [t.shape for t in others]:
        return None
    return all_of(map(same, ones, others))


def _is_same_total(
    name: str,
    before: Factors,
    after: Factors,
    old: Tensor,
    new: Tensor,
    same: Same,
) -> Verdict:
    """Whether samples have the same gradients, whichever operations they come from."""
    if not len(old):
        return True
    ones, others = list_factors(before, name, old[:1]), list_factors(after, name, new[:1])
    if not ones or not others:
        found = list_factors(before, name, old) if ones else list_factors(after, name, new)
        squares = [each.sq_norm() for each in found]
        return negated(any_of(verdict_of(each.nan_to_num(0.0).any()) for each in squares))
    at_once = max(1, _FLOATS_AT_ONCE // max(1, ones[0].shape.numel()))
    pairs = zip(old.split(at_once), new.split(at_once), strict=True)
    return all_of(
        same(_add_up(list_factors(before, name, some)), _add_up(list_factors(after, name, them)))
        for some, them in pairs
    )


def list_factors(factors: Factors, name: str, samples: Tensor | None = None) -> list[Factor]:
    """All that were made of one parameter's gradients, as its own; of these samples, if any."""
    return [
        each.target.pull(name, (each if samples is None else each.select(samples)).factor)
        for made in factors.values()
        for each in made or ()
        if name in each.target.names
    ]


def _add_up(factors: Sequence[Factor]) -> Tensor:
    first, *others = (factor.materialize() for factor in factors)
    for other in others:
        first = first + other
    return first
