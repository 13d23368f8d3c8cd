"""Who is drawn, and which of their records: at random, independent, and in whole units."""

import math
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch
from scipy import stats
from tests.sampling.helpers import Indices, table_of
from tests.sampling.test_poisson import SURE, p_of_marginals, p_of_pairs, two_sided

from quietgrad.sampling import BatchLoader, OwnSampler, Units, resolve
from quietgrad.sampling.samplers import PoissonDraws, pass_key

from .helpers import COUNTS, ids

OWNERS = ids()
NAMES = list(dict.fromkeys(OWNERS))
PEOPLE = len(COUNTS)
NUMBERS = [NAMES.index(each) for each in OWNERS]


def loader(draws=None, most=3, *, steps=400, rate=0.4, **options):
    units = Units(OWNERS, len(OWNERS), most)
    draws = PoissonDraws(PEOPLE, rate, steps) if draws is None else draws
    return BatchLoader(Indices(len(OWNERS)), draws, units=units, seed=5, **options)


def steps_of(loader):
    """By step, the records of each unit that was drawn."""
    found = []
    for batch in loader:
        micro_batches = [micro.tolist() for micro in batch]
        by_unit = {}
        for micro in micro_batches:
            own = dict.fromkeys(OWNERS[record] for record in micro)
            assert not own.keys() & by_unit.keys(), "a unit was split"
            for name in own:
                by_unit[name] = [record for record in micro if OWNERS[record] == name]
            assert micro == [record for name in own for record in by_unit[name]], "not side by side"
        assert batch.size == len(by_unit)
        found.append(by_unit)
    return found


@pytest.fixture(scope="module")
def drawn():
    return steps_of(loader(steps=4000, physical_batch_size=7))


def test_units_are_drawn_like_samples(drawn):
    table = table_of([[NAMES.index(name) for name in each] for each in drawn], PEOPLE)
    assert p_of_marginals(table, 0.4) > 1e-3
    assert p_of_pairs(table, 0.4) > 1e-3
    assert p_of_marginals(table, 0.43) < SURE


def choices(drawn, name):
    return [tuple(each[name]) for each in drawn if name in each]


def p_of_choices(seen, count, most):
    cells = Counter(seen)
    subsets = math.comb(count, most)
    expected = len(seen) / subsets
    every = list(cells.values()) + [0] * (subsets - len(cells))
    statistic = sum((each - expected) ** 2 / expected for each in every)
    return stats.chi2(subsets - 1).sf(statistic)


@pytest.mark.parametrize("place", [i for i, count in enumerate(COUNTS) if count > 3])
def test_each_choice_of_records_is_as_likely(drawn, place):
    seen = choices(drawn, NAMES[place])
    assert all(len(set(each)) == 3 for each in seen)
    assert p_of_choices(seen, COUNTS[place], 3) > 1e-3
    first = [(0, 1, 2) if index % 5 == 0 else each for index, each in enumerate(seen)]
    assert p_of_choices(first, COUNTS[place], 3) < SURE  # what is not would be noticed


def test_small_units_take_part_whole(drawn):
    for name, count in zip(NAMES, COUNTS, strict=True):
        if count <= 3:
            assert {len(each) for each in choices(drawn, name)} == {count}


def test_choices_are_independent_between_units_and_steps(drawn):
    large = [name for name, count in zip(NAMES, COUNTS, strict=True) if count == 5]
    for one, other in combinations(large, 2):
        together = [(each[one][0], each[other][0]) for each in drawn if {one, other} <= each.keys()]
        assert correlation_p(together) > 1e-3
    for name in large:
        assert correlation_p(pairwise(each[0] for each in choices(drawn, name))) > 1e-3


def correlation_p(pairs):
    values = np.array(list(pairs), dtype=float)
    found = np.corrcoef(values.T)[0, 1]
    return two_sided(stats.norm.cdf(found * math.sqrt(len(values))))


def test_what_is_chosen_does_not_depend_on_who_else_is_drawn():
    units = Units(OWNERS, len(OWNERS), 1)
    key = pass_key(3, 0)
    alone = [units.choose([3], key, step)[0] for step in range(50)]
    assert len(set(map(tuple, alone))) == COUNTS[3]
    assert alone == [units.choose([3, 4, 0], key, step)[0] for step in range(50)]


def test_a_seed_fixes_the_records_and_passes_differ():
    one, two = (loader(steps=30, most=1) for _ in range(2))
    first, second = steps_of(one), steps_of(one)
    assert first == steps_of(two)
    assert first != second


def test_no_micro_batch_is_larger_and_none_could_be_joined():
    for batch in loader(steps=60, physical_batch_size=6):
        sizes = [len(each) for each in batch.indices]
        first = [min(own.counts[:1], default=0) for own in batch.indices]
        assert all(size <= 6 for size in sizes)
        assert all(size + next_ > 6 for size, next_ in zip(sizes, first[1:], strict=False))
        batch.discard()


@pytest.mark.parametrize("size", [None, 10_000])
def test_one_large_unit_does_not_enlarge_the_others(size):
    """Laid out as if each had 10,000 records, 500 units of one would take a thousand times more."""
    counts = [1] * 250 + [10_000] + [1] * 250 + [30] * 20
    owners = np.arange(len(counts)).repeat(counts)
    units = Units(owners, len(owners), 10_000)
    chosen = units.choose(range(len(counts)), 1, 0)
    packed = units.pack(chosen, size)
    assert sorted(r for each in packed for r in each) == list(range(len(owners)))
    padded = [max(each.counts) * len(each.counts) for each in packed]
    assert max(padded) <= 2 * (size or len(owners))
    assert len(packed) == 2


def test_units_of_like_size_stay_whole():
    units = Units(OWNERS, len(OWNERS), 3)
    chosen = units.choose(range(PEOPLE), 1, 0)
    assert len(units.pack(chosen, None)) == 1
    assert units.pack([], None) == units.pack([], 6) == []


SAMPLERS = {
    "shuffled": resolve("shuffled"),
    "full-batch": resolve("full-batch"),
    "poisson:9": resolve("poisson:9"),
    "own": None,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_draws_units(name):
    from quietgrad.accounting import Passes

    own = OwnSampler([[0, 5], [1, 2, 3], [4]], accounted_as=Passes(3))
    sampler = own if SAMPLERS[name] is None else SAMPLERS[name]
    size = PEOPLE if name == "full-batch" else 5
    found = steps_of(loader(sampler.bind(PEOPLE, size)))
    people = [name for each in found for name in each]
    if name == "shuffled":
        assert sorted(people) == sorted(NAMES)
    elif name == "full-batch":
        assert [sorted(each) for each in found] == [sorted(NAMES)]
    elif name == "own":
        drawn = [sorted(NAMES.index(name) for name in each) for each in found]
        assert drawn == [[0, 5], [1, 2, 3], [4]]
    else:
        assert max(map(len, found)) <= 9


class Table(list):
    """As long as its columns, which are what it gives."""

    def __iter__(self):
        return iter(("id", "age"))

    def __len__(self):
        return 33


WRONG = [
    (OWNERS[:-1], "has 32 ids, and the data set 33 records"),
    ([*OWNERS[:-1], None], r"units\[32\] is None: nobody knows whose record"),
    ([1.0] * 32 + [float("nan")], r"units\[32\] is nan: nobody knows"),
    (np.array([1.0] * 32 + [np.nan]), r"units\[32\] is nan: nobody knows"),
    (torch.full((33,), torch.nan), r"units\[0\] is nan: nobody knows"),
    (np.array([1] * 32 + ["NaT"], dtype="datetime64[s]"), r"units\[32\] is None: nobody knows"),
    (np.ma.masked_equal(np.arange(33), 7), r"units\[7\] is None: nobody knows"),
    (pa.array([*range(32), None]), r"units\[32\] is None: nobody knows"),
    ([7, "7", *OWNERS[2:]], r"units\[0\] and units\[1\] are ids of two types \(a number, str\)"),
    (
        [*OWNERS[:-1], OWNERS[0].encode()],
        r"ids of two types \(str, bytes\): 7 and '7' would be",
    ),
    ([object() for _ in OWNERS], r"units\[0\] is <object .* equals nothing but itself"),
    ([(1, None) for _ in OWNERS], r"units\[0\] is None: nobody knows"),
    ([(1, float("nan")) for _ in OWNERS], r"units\[0\] is nan: nobody knows"),
    ([(1, 7), (1, "7")] * 16 + [(1, 7)], r"two types \(\(a number, a number\), \(a number, str"),
    ([torch.zeros(2)] * 33, r"units\[0\] is tensor.*: expected an id"),
    (torch.zeros(33, dtype=torch.bfloat16), "a tensor whose ids cannot be read"),
    ([*OWNERS[:-1], ["a"]], r"units\[32\] is \['a'\]: expected an id"),
    (torch.zeros(33, 1), r"has the shape \(33, 1\)"),
    ("person", "not the name of a column"),
    (7, "expected one id for each record"),
    (dict(enumerate(OWNERS)), "in their order, and not the name"),
    (set(range(33)), "in their order, and not the name"),
    (Table(), "units gives 2 values for 33 records"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda each: str(each)[:20])
def test_wrong_ids_are_refused(given, said):
    with pytest.raises((TypeError, ValueError), match=said):
        Units(given, 33, 3)


@pytest.mark.parametrize("most", [0, -1, 2.5, None, True])
def test_wrong_caps_are_refused(most):
    with pytest.raises(ValueError, match=r"records_per_unit=.* expected an integer >= 1"):
        Units(OWNERS, 33, most)


FORMS = {
    "strings": OWNERS,
    "an array of strings": np.array(OWNERS),
    "an array of objects": np.array(OWNERS, dtype=object),
    "numbers": [hash(each) for each in OWNERS],
    "floats": [float(NAMES.index(each)) for each in OWNERS],
    "a tensor": torch.tensor([50 - NAMES.index(each) for each in OWNERS]),
    "numbers of a tensor": list(torch.tensor([NAMES.index(each) for each in OWNERS])),
    "dates": np.array([NAMES.index(each) for each in OWNERS], dtype="datetime64[D]"),
    "a column": pa.array(OWNERS),
    "several kinds of numbers": [[int, float, np.int32][i % 3](n) for i, n in enumerate(NUMBERS)],
    "tuples of tensors": [(torch.tensor(NAMES.index(each)), torch.tensor(1)) for each in OWNERS],
    "tuples": [(each, "x") for each in OWNERS],
}


@pytest.mark.parametrize("form", FORMS)
def test_ids_may_be_anything_that_can_be_compared(form):
    found = Units(FORMS[form], 33, 3)
    assert len(found) == PEOPLE
    assert found.digest == Units(OWNERS, 33, 3).digest


def test_records_of_a_unit_may_be_anywhere():
    order = torch.randperm(33, generator=torch.Generator().manual_seed(1)).tolist()
    found = Units([OWNERS[place] for place in order], 33, 33)
    for unit, own in enumerate(found.choose(range(PEOPLE), 1, 0)):
        assert len({OWNERS[order[record]] for record in own}) == 1, unit
