"""Units of several records: a person and all of that person's records in the data set.

A unit is drawn as a whole, as a sample is. Of its records at most so many take part each time,
chosen anew, so that someone with many records is not clipped to a gradient of all of them.
"""

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from itertools import pairwise
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from quietgrad._checks import require_count
from quietgrad.keystream import derived_key
from quietgrad.sampling.samplers import step_words

Ids = Sequence[Hashable] | NDArray[Any] | Tensor
"""One id for each record: numbers, strings or whatever else can be compared."""


_MOST_PADDED = 2


class UnitRecords(list[int]):
    """Records of some units, those of a unit side by side.

    Attributes:
        counts: how many records each unit has.
    """

    def __init__(self, by_unit: Sequence[list[int]]) -> None:
        super().__init__(record for records in by_unit for record in records)
        self.counts = [len(records) for records in by_unit]


class Units:
    """Which records belong to which unit; units are numbered as they first come.

    Args:
        ids: of the unit that each record belongs to.
        records: the number of records.
        most: of a unit's records, how many take part at most when it is drawn.

    Raises:
        TypeError: the ids are no sequence.
        ValueError: there are more or fewer ids than records, one of them is missing, or ``most`` is
            no number from 1 on.
    """

    def __init__(self, ids: Ids, records: int, most: int) -> None:
        self.most = require_count("records_per_unit", most, at_least=1)
        owners = _number(ids, records)
        self._order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners) if len(owners) else np.zeros(0, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)])

    def __len__(self) -> int:
        """The number of units."""
        return len(self._starts) - 1

    @property
    def digest(self) -> str:
        """The same for the same records of the same units. As private as they are."""
        content = self._order.tobytes() + self._starts.tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def choose(self, units: Sequence[int], key: int, step: int) -> list[list[int]]:
        """The records of these units that take part in a step of the pass with this key.

        Of a unit with more than ``most`` records, each choice of so many is as likely as any other,
        whoever else is drawn.
        """
        drawn = np.asarray(units, dtype=np.int64)
        starts, counts = self._starts[drawn], np.diff(self._starts)[drawn]
        owners = np.repeat(np.arange(len(drawn)), counts)
        firsts = np.cumsum(counts) - counts
        within = np.arange(len(owners)) - firsts[owners]
        places = starts[owners] + within
        is_cut = counts[owners] > self.most
        ranks = np.zeros(len(owners), dtype=np.uint64)
        own_key = int.from_bytes(derived_key(key, "records of units"))
        ranks[is_cut] = step_words(own_key, step, int(is_cut.sum()))
        by_rank = np.lexsort((ranks, owners))  # of a unit one after the other, in random order
        kept = np.sort(by_rank[within < self.most])
        records = self._order[places[kept]].tolist()
        ends = np.cumsum(np.minimum(counts, self.most)).tolist()
        return [records[start:end] for start, end in pairwise([0, *ends])]

    def pack(self, chosen: Sequence[list[int]], size: int | None) -> list[UnitRecords]:
        """Micro-batches of at most ``size`` records, in which units are whole.

        Gradients are laid out as if each unit of a micro-batch had as many records as the largest.
        So units of like numbers stand together, and what is laid out is kept within twice ``size``:
        where that is None, within twice the records that were chosen.
        """
        size = size or sum(map(len, chosen))
        packed: list[list[list[int]]] = []
        room = places = 0
        for records in sorted(chosen, key=len, reverse=True):
            if not packed or len(records) > room or len(packed[-1]) == places:
                packed.append([])
                room, places = size, _MOST_PADDED * size // len(records)
            packed[-1].append(records)
            room -= len(records)
        return [UnitRecords(each) for each in packed]


def _number(ids: Ids, records: int) -> NDArray[np.int64]:
    """The number of each record's unit."""
    if isinstance(ids, Tensor):
        ids = _as_array(ids)
    has_order = not isinstance(ids, str | bytes | Mapping | Set)
    if not (has_order and hasattr(ids, "__len__") and hasattr(ids, "__iter__")):
        raise TypeError(
            f"units={ids!r} is not valid: expected one id for each record (a list, an array, a "
            "tensor or a column of a table), in their order, and not the name of a column"
        )
    if isinstance(ids, np.ma.MaskedArray):
        ids = ids.tolist(None)  # where it is masked
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "mM":
        ids = [None if np.isnat(each) else each for each in ids]
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise ValueError(
            f"units has the shape {ids.shape}: expected one id for each record, in one dimension"
        )
    if len(ids) != records:
        raise ValueError(
            f"units has {len(ids)} ids, and the data set {records} records: expected one for each, "
            "in their order"
        )
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "biuSU":
        _, firsts, inverse = np.unique(ids, return_index=True, return_inverse=True)
        return firsts.argsort().argsort()[inverse]
    return _number_any(ids.tolist() if isinstance(ids, np.ndarray) else ids, records)


def _number_any(ids: Iterable[Any], records: int) -> NDArray[np.int64]:
    """The same of ids of any type."""
    numbers: dict[Hashable, int] = {}
    kinds: dict[Hashable, int] = {}  # and where each comes first
    found = []
    for place, each in enumerate(ids):
        unit = _require_known(each, place)
        kinds.setdefault(_kind(unit), place)
        found.append(numbers.setdefault(unit, len(numbers)))
    if len(found) != records:  # a whole table has as many rows, but gives its columns
        raise TypeError(
            f"units gives {len(found)} values for {records} records ({type(ids).__name__}): "
            "expected one id for each, such as a single column of a table"
        )
    if len(kinds) > 1:
        (one, first), (other, second), *_ = kinds.items()
        raise ValueError(
            f"units[{first}] and units[{second}] are ids of two types ({one}, {other}): "
            "7 and '7' would be two people. Expected ids of one type, such as "
            "[str(id) for id in ids]"
        )
    return np.array(found, dtype=np.int64)


def _as_array(ids: Tensor) -> NDArray[Any]:
    try:
        return ids.detach().cpu().numpy()
    except (RuntimeError, TypeError) as error:  # of no data, sparse, or of a type of torch alone
        raise TypeError(
            f"units is a tensor whose ids cannot be read ({error}): expected one of whole numbers"
        ) from error


def _kind(unit: Hashable) -> str:
    if isinstance(unit, tuple):
        return f"({', '.join(map(_kind, unit))})"
    return "a number" if isinstance(unit, Number) else type(unit).__name__


def _require_known(unit: Any, place: int) -> Hashable:
    """An id that says whose record it is, and is the same for all records of that unit."""
    try:
        if isinstance(unit, Tensor) or (isinstance(unit, np.generic) and unit.dtype.kind != "M"):
            unit = unit.item()
        elif hasattr(unit, "as_py"):  # of pyarrow
            unit = unit.as_py()
        hash(unit)
        is_missing = unit is None or bool(unit != unit)
    except (TypeError, ValueError, RuntimeError):  # a list, an array, or pandas' missing value
        raise ValueError(
            f"units[{place}] is {unit!r}: expected an id, such as a number or a string"
        ) from None
    if isinstance(unit, tuple):  # such as site and patient: a tensor in it equals no other
        return tuple(_require_known(each, place) for each in unit)
    if is_missing:
        raise ValueError(
            f"units[{place}] is {unit!r}: nobody knows whose record it is. Leave such records out,"
            " or give each an id of its own if they are nobody else's"
        )
    kind: Any = type(unit)
    if kind.__hash__ is object.__hash__:
        raise ValueError(
            f"units[{place}] is {unit!r}, which equals nothing but itself: each record would be a"
            " unit of its own. Expected an id, such as a number or a string"
        )
    return unit  # type: ignore[no-any-return]
