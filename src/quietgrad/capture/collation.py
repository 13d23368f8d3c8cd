"""Whether a sample is the same to the model when it is collated alone and beside another one.

What collates elements may pad them to the longest, and to a model for which padding counts a sample
then depends on the others of its micro-batch. It may also compute something over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quietgrad.capture.choice import random_order
from quietgrad.capture.compare import (
    Branch,
    Node,
    agree_across_sizes,
    agree_by_sample,
    coarsest_bits,
    find_largest,
    is_same,
    leaves,
)
from quietgrad.capture.draws import ConstantDraws, preserve_randomness
from quietgrad.capture.independence import RecordedCall
from quietgrad.capture.outputs import Seed, has_one_for_each, list_factors
from quietgrad.capture.refusals import counted_refusal
from quietgrad.capture.repetition import Execution, ModelCall, repeat
from quietgrad.capture.samples import Arguments, rebuild, rebuild_arguments
from quietgrad.errors import SampleMixingError
from quietgrad.factors.base import all_of
from quietgrad.factors.combined import combine, norms_of_extremes

# Elements of a micro-batch, of which the shortest and the longest are taken: at first, and later.
_TRIED_FIRST, _TRIED = 64, 4
_COMPARED_FIRST, _COMPARED = 8, 4  # whose labels are compared


@dataclass(frozen=True)
class Collation:
    """A micro-batch, and how it was made.

    Attributes:
        content: what was handed out.
        indices: of its elements in the data set.
        load: gives an element of the data set.
        collate: makes a micro-batch of a list of elements.
    """

    content: Any
    indices: Sequence[int]
    load: Callable[[int], Any]
    collate: Callable[[list[Any]], Any]

    def find_pair(self, *, tried: int) -> tuple[Any, Any] | None:
        """A short and a long element; None if there are none, or collating draws at random."""
        order = random_order(len(self.indices))[:tried].tolist()
        with preserve_randomness():
            try:
                elements = [self.load(self.indices[place]) for place in order]
                sizes = [_size(self.collate([element, element])) for element in elements]
                low, high = min(sizes), max(sizes)
                short = elements[sizes.index(low)]
                rest = [e for e, size in zip(elements, sizes, strict=True) if size == high]
                long = next((e for e in rest if e is not short), None)
                if long is None or not self._is_repeatable([short, long]):
                    return None
            except Exception:
                return None  # elements that cannot be loaded again, or not be collated twice
        return short, long

    def find_mixed_part(self, known: set[int], *, compared: int) -> Tensor | None:
        """A part that has other values for an element beside others than beside itself.

        Args:
            known: places of parts that the model gets, which tell where an element went.
            compared: number of elements.
        """
        order = random_order(len(self.indices))[:compared].tolist()
        count = len(order)
        with preserve_randomness():
            try:
                elements = [self.load(self.indices[place]) for place in order]
                if not self._is_repeatable(elements):
                    return None
                together = _parts(self.collate(elements))
                alone = [_parts(self.collate([element] * count)) for element in elements]
            except Exception:
                return None
        if any(len(parts) != len(together) for parts in alone):
            return None
        # What the model gets: it may sort, and then every row of it has gone to the same place.
        rows = [set(range(count)) for _ in order]
        unsorted = [{row} for row in range(count)]
        for place in sorted(known):
            found = _find_rows(together[place], [parts[place] for parts in alone], count)
            if found is not None and all(found):
                rows = [one & other for one, other in zip(rows, found, strict=True)]
                unsorted = rows
        for place, part in enumerate(together):
            found = _find_rows(part, [parts[place] for parts in alone], count)
            if place in known or found is None:
                continue
            if not all(one & other for one, other in zip(unsorted, found, strict=True)):
                return torch.as_tensor(part)
        return None

    def _is_repeatable(self, elements: list[Any]) -> bool:
        torch.manual_seed(0)
        first = self.collate(elements)
        torch.manual_seed(1)
        np.random.rand()  # noqa: NPY002  what collates may draw from it
        return bool(is_same(_parts(first), _parts(self.collate(elements))))


def _size(content: Any) -> int:
    return sum(part.numel() for part in _parts(content) if isinstance(part, Tensor))


def _find_rows(part: Any, alone: list[Any], count: int) -> list[set[int]] | None:
    """For each element the rows of a part that are its own; None if a part has no such rows."""
    beside, *own = (_as_rows(each, count) for each in (part, *alone))
    if beside is None or any(each is None for each in own):
        return None
    return [
        {row for row in range(count) if each is not None and _is_beside(each[row], beside[row])}
        for each in own
    ]


def _as_rows(part: Any, count: int) -> Tensor | None:
    """A tensor with a row for each of the elements, if the part is one."""
    if isinstance(part, np.ndarray) and part.dtype.kind not in "biufc":
        return None
    if not isinstance(part, (Tensor, np.ndarray)) or not part.ndim or len(part) != count:
        return None
    rows = torch.as_tensor(part).detach().cpu()
    return None if rows.layout is not torch.strided or rows.is_quantized else rows


def _is_beside(alone: Tensor, beside: Tensor) -> bool:
    """Whether one is the other, with places for longer ones before or behind."""
    if alone.ndim != beside.ndim or any(
        a > b for a, b in zip(alone.shape, beside.shape, strict=True)
    ):
        return False
    begin = tuple(slice(0, size) for size in alone.shape)
    end = tuple(slice(b - a, None) for a, b in zip(alone.shape, beside.shape, strict=True))
    return any(bool(is_same(alone, beside[places])) for places in (begin, end))


def _parts(tree: Any) -> list[Any]:
    """Tensors, arrays and plain values of a structure, in order."""
    found: list[Any] = []

    def note(part: Any) -> Any:
        if isinstance(part, (Tensor, np.ndarray)):
            found.append(part)
            return part
        return None

    def walk(part: Any) -> None:
        if isinstance(part, (list, tuple)):
            for child in part:
                walk(child)
        elif isinstance(part, dict):
            for child in part.values():
                walk(child)
        elif isinstance(part, (bool, int, float, str, bytes, type(None))):
            found.append(part)
        else:
            rebuild(part, note)

    walk(tree)
    return found


def check_collation(recorded: RecordedCall, collation: Collation, *, is_first: bool) -> None:
    """Refuse a model to which a sample is another one beside a longer one than alone.

    Where the call's arguments cannot be found in what was collated, nothing can be told. Gradients
    are compared if nothing was verified before.
    """
    pair = collation.find_pair(tried=_TRIED_FIRST if is_first else _TRIED)
    if pair is None:
        return
    replace_parts = _match(recorded.call.args, recorded.call.kwargs, collation.content)
    if replace_parts is None:
        return
    short, long = pair
    chosen = ([short] * 2, [long] * 2, [short, long], [short, long, long])
    with preserve_randomness():
        batches = [collation.collate(each) for each in chosen]
        # What collates may sort: then the order in which it is given elements does not count.
        is_sorting = is_same(_parts(collation.collate([long, short])), _parts(batches[2]))
    alone, other, beside, more = map(replace_parts, batches)
    if alone is None or other is None or beside is None:
        return
    pair_of_runs = _Pair(recorded, is_sorting=bool(is_sorting))
    if not pair_of_runs.agree(alone, other, beside, backward=is_first):
        raise SampleMixingError(
            "the output or the gradient of a sample changes when collate_fn puts it together with "
            f"another sample (model {type(recorded.call.model).__name__}): padding counts, "
            "collate_fn computes something over all its samples, or the model uses the number of "
            "all rows. One sample would change the "
            "gradients of others. Mask padded places in the model (attention_mask; "
            "(h * mask).sum(1) / mask.sum(1) for a mean), or pad to a fixed length, and compute "
            "nothing across samples in collate_fn. The model must return them in the order in "
            "which they are collated."
        )
    # Samples that are joined cannot be left out in another way.
    is_counted = is_first or recorded.has_owned_rows
    if is_counted and more is not None and not pair_of_runs.agree_with_more(beside, more):
        raise counted_refusal(type(recorded.call.model).__name__)


def check_targets(calls: Sequence[ModelCall], collation: Collation, *, is_first: bool) -> None:
    """Refuse to collate what only the loss gets, labels say, of several samples.

    The model is not run: what it gets is compared by :func:`check_collation`.

    Args:
        calls: of the model, with all that it got of this micro-batch.
        collation: how the micro-batch was made.
        is_first: whether nothing was verified before.
    """
    parts, known = _parts(collation.content), set[int]()
    for call in calls:
        places = _places(call.args, call.kwargs, parts)
        if places is None:
            return
        known |= set(places.values())
    compared = _COMPARED_FIRST if is_first else _COMPARED
    mixed = collation.find_mixed_part(known, compared=compared)
    if mixed is not None:
        raise SampleMixingError(
            f"collate_fn gives a sample other values beside other samples than beside itself, in a "
            f"tensor of shape {list(mixed.shape)} that the model does not get (labels, weights or "
            "masks of the loss): it computes something over all its samples, or does not keep "
            "their order. One sample would change the gradients of others. Compute nothing across "
            "samples in collate_fn, and leave out of a micro-batch what counts or averages them."
        )


def _match(
    args: tuple[Any, ...], kwargs: dict[str, Any], content: Any
) -> Callable[[Any], Arguments | None] | None:
    """Makes arguments of another content in the way that these were made of this one."""
    parts = _parts(content)
    places = _places(args, kwargs, parts)
    return None if places is None else partial(_fill_in, (args, kwargs), places, len(parts))


def _places(
    args: tuple[Any, ...], kwargs: dict[str, Any], parts: list[Any]
) -> dict[int, int] | None:
    """Which part each argument is, by id; None if there are others, or none at all."""
    places: dict[int, int] = {}
    unknown: list[Any] = []

    def find(part: Any) -> Any:
        same = [place for place, known in enumerate(parts) if _is_part(part, known)]
        if same:
            places[id(part)] = next((p for p in same if p not in places.values()), same[0])
        elif isinstance(part, (Tensor, np.ndarray)) and part.ndim:
            unknown.append(part)
        return None

    rebuild_arguments((args, kwargs), find)
    for value in (*args, *kwargs.values()):
        if isinstance(value, (int, float)):
            find(value)
    return None if unknown or not places else places


def _fill_in(
    arguments: Arguments, places: dict[int, int], count: int, content: Any
) -> Arguments | None:
    """Arguments with their parts, by id, replaced by the parts of ``content`` at these places."""
    parts = _parts(content)
    if len(parts) != count:
        return None

    def choose(part: Any) -> Any:
        if id(part) not in places:
            return None
        chosen = parts[places[id(part)]]
        return chosen.to(part) if isinstance(chosen, Tensor) else chosen

    def fill(value: Any) -> Any:
        return choose(value) if id(value) in places else rebuild(value, choose)

    args, kwargs = arguments
    return tuple(map(fill, args)), {name: fill(value) for name, value in kwargs.items()}


def _is_part(part: Any, known: Any) -> bool:
    if isinstance(part, Tensor) and isinstance(known, Tensor):
        if part is known:
            return True
        if part.is_complex() or known.is_complex():
            return False
        # The loop may have changed its type or its device.
        return part.shape == known.shape and torch.equal(
            part.detach().cpu().double(), known.cpu().double()
        )
    if isinstance(part, np.ndarray) and isinstance(known, np.ndarray):
        return part is known or bool(is_same(part, known))
    return part is known and isinstance(part, (int, float))


class _Pair:
    """Runs of one sample beside itself and beside another one, which comes second."""

    def __init__(self, recorded: RecordedCall, *, is_sorting: bool) -> None:
        self._recorded, self._call, self._is_sorting = recorded, recorded.call, is_sorting
        assert recorded.call.returned is not None
        self._is_list = has_one_for_each(
            recorded.call.returned, recorded.call.outputs, recorded.batch
        )

    def agree(
        self, alone: Arguments, other: Arguments, beside: Arguments, *, backward: bool
    ) -> bool:
        """Whether both samples get the same beside each other as each beside itself."""
        try:
            first = self._run(alone, None, backward=backward)
            second = self._run(other, None, backward=False)
            both = self._run(beside, first, backward=backward)
        except Exception:
            return True  # a model that does not run with so few says so in its own way
        bits = coarsest_bits(self._call.model.parameters())
        if self._same_outputs(first, second, both, (0, 1), bits):
            return self._same_gradients(first, both, bits)
        return self._is_sorting and self._same_outputs(first, second, both, (1, 0), bits)

    def agree_with_more(self, beside: Arguments, more: Arguments) -> bool:
        """Whether both samples get the same when there is a third one behind them."""
        if self._is_sorting:
            return True
        try:
            two, three = (
                self._run(given, None, backward=False, count=count)
                for given, count in ((beside, 2), (more, 3))
            )
        except Exception:
            return True
        bits = coarsest_bits(self._call.model.parameters())
        ones = _outputs_of_each(two.outputs, 2, is_list=self._is_list)
        others = _outputs_of_each(three.outputs, 3, is_list=self._is_list)
        return all(
            _agree_where_both_are(one, other, bits)
            for rows, more_rows in zip(ones, others, strict=False)
            for one, other in zip(rows, more_rows, strict=False)
        )

    def _same_outputs(
        self,
        first: Execution,
        second: Execution,
        both: Execution,
        places: tuple[int, int],
        bits: int,
    ) -> bool:
        one, other, together = (
            _outputs_of_each(run.outputs, 2, is_list=self._is_list) for run in (first, second, both)
        )
        return all(
            _agree_where_both_are(a, b, bits)
            for alone, place in ((one[0], places[0]), (other[0], places[1]))
            for a, b in zip(alone, together[place], strict=False)
        )

    def _run(
        self, arguments: Arguments, like: Execution | None, *, backward: bool, count: int = 2
    ) -> Execution:
        def seeds(outputs: Node, factors: Tensor | None) -> list[Seed]:
            scale = 1.0 if factors is None else factors[0].item()
            seen = outputs if like is None else like.outputs
            rows, _ = _outputs_of_each(seen, 2, is_list=self._is_list)
            shapes = [row.shape for row in rows]
            return _seed_first(outputs, shapes, scale, is_list=self._is_list)

        call, recapture = self._call, self._recorded.recapture
        begin = seeds if call.with_gradients and backward else None
        samples, mode = torch.arange(count, device="cpu"), ConstantDraws()
        return repeat(call, lambda _: arguments, samples, begin, recapture, mode)

    def _same_gradients(self, first: Execution, other: Execution, bits: int) -> bool:
        """By the norms of all parameters: the outputs, which they begin with, are the same."""
        unknown = first.unknown | other.unknown
        names = {
            name
            for run in (first, other)
            for made in run.factors.values()
            for each in made or ()
            for name in each.target.names
            if name not in unknown
        }
        norms = [(_first_norm(first, name), _first_norm(other, name)) for name in sorted(names)]
        largest = find_largest(one for one, _ in norms)
        return bool(all_of(agree_by_sample(one, two, bits, largest) for one, two in norms))


def _first_norm(run: Execution, name: str) -> Tensor:
    """Of the first sample's gradient of a parameter, ``[1]``, whatever its size."""
    factors = list_factors(run.factors, name)
    if not factors:
        return torch.zeros(1, dtype=torch.float64, device="cpu")
    first = torch.zeros(1, dtype=torch.int64, device="cpu")
    return norms_of_extremes([combine(factors)], first).double().cpu()


Rows = list[Tensor]
"""What was returned for one sample."""


def _outputs_of_each(outputs: Node, count: int, *, is_list: bool) -> list[Rows]:
    """Of each sample: rows of tensors, or the entries of a list."""
    if is_list and isinstance(outputs, Branch) and len(outputs.children) == count:
        return [list(leaves(child)) for child in outputs.children]
    rows = [tensor for tensor in leaves(outputs) if tensor.ndim and len(tensor) == count]
    return [[row[place] for row in rows] for place in range(count)]


def _seed_first(
    outputs: Node, shapes: Sequence[torch.Size], scale: float, *, is_list: bool
) -> list[Seed]:
    """Fixed numbers for the first sample, where it has places alone too; zero elsewhere."""
    whole = [tensor for tensor in leaves(outputs) if tensor.ndim and len(tensor) == 2]
    if is_list:
        whole, _ = _outputs_of_each(outputs, 2, is_list=True)
    seeds = []
    for output, shape in zip(whole, shapes, strict=False):
        if output.requires_grad:
            seed = torch.zeros_like(output)
            part: Any = tuple(slice(0, size) for size in shape)
            values = torch.linspace(-1, 2, max(1, shape.numel()), dtype=output.dtype, device="cpu")
            values = values[: shape.numel()].view(shape).to(output.device)
            seed[part if is_list else (0, *part)] = scale * values
            seeds.append(Seed(output, seed))
    return seeds


def _agree_where_both_are(alone: Tensor, beside: Tensor, bits: int) -> bool:
    """On the positions that a sample has alone, at the beginning or at the end of the row."""
    one, two = alone.detach(), beside.detach()
    if one.ndim != two.ndim or any(a > b for a, b in zip(one.shape, two.shape, strict=True)):
        return False
    if not one.is_floating_point():
        return True
    ends = [tuple(slice(0, size) for size in one.shape)]
    ends.append(tuple(slice(two.shape[d] - size, None) for d, size in enumerate(one.shape)))
    return any(agree_across_sizes(one, two[end], bits) for end in ends)
