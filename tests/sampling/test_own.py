"""Samplers of the user's own: held to what was declared for them."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, SequentialSampler

from quietgrad.accounting.events import FullBatch, Passes, Poisson, TruncatedPoisson
from quietgrad.errors import QuietgradError, SamplingError
from quietgrad.sampling import BatchLoader, OwnSampler

from .helpers import POPULATION, Indices, content, drawn

FOUR = Indices(4)
CUT = TruncatedPoisson(rate=0.5, largest=2, population=5)


def own_loader(batches, accounted_as, data=FOUR, **options):
    draws = OwnSampler(batches, accounted_as).bind(len(data), _batch_size(accounted_as, len(data)))
    return BatchLoader(data, draws, **options)


def _batch_size(accounted_as, population):
    return max(1, round(getattr(accounted_as, "rate", 0) * population))


class NoLength:
    """Batches that can be iterated again and again, but not counted beforehand."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


class Wrong(NoLength):
    """A length that is not the true one."""

    def __len__(self):
        return 1


ACCEPTED = {
    "a list of lists": ([[0, 1], [2, 3]], Passes(2)),
    "tuples and arrays": ([(0, 1), np.array([2, 3])], Passes(2)),
    "fewer batches than declared": ([[0, 1]], Passes(2)),
    "each sample twice": ([[0, 1], [1, 0]], Passes(2, times=2)),
    "full batches": ([[0, 1, 2, 3], [3, 2, 1, 0]], FullBatch()),
    "poisson": ([[0, 1], [], [0]], Poisson(0.5)),
    "truncated": ([[0, 1], [], [2]], CUT),
    "without a length": (NoLength([[0, 1], [2, 3]]), Passes(2)),
}

REFUSED = {
    "twice in a batch": ([[0, 1, 0]], Passes(1, times=9), "batch 0 .* index 0 twice"),
    "twice, whatever is declared": ([[1], [2, 2]], Poisson(0.5), "batch 1 .* index 2 twice"),
    "negative": ([[0, -1]], Passes(1), r"index -1: expected indices in range\(4\)"),
    "too large": ([[0, 4]], Poisson(0.5), "index 4"),
    "too large, full": ([[0, 1, 2, 4]], FullBatch(), "index 4"),
    "floats": ([[0.0, 1.0]], Passes(1), "type float"),
    "booleans": ([[True, False]], Passes(1), "type bool"),
    "tensors": ([torch.tensor([0, 1])], Passes(1), r"type Tensor.*tolist"),
    "text": (["01"], Passes(1), "type str"),
    "single indices": ([0, 1], Passes(2), "batch 0 .* is a int.*BatchSampler"),
    "more often than declared": ([[0, 1], [1, 2]], Passes(2), "batch 1 .*index 1 for time 2"),
    "three times": ([[0]] * 3, Passes(3, times=2), "batch 2 .*index 0 for time 3"),
    "not everybody": ([[0, 1, 2]], FullBatch(), "lacks some samples"),
    "nobody": ([[]], FullBatch(), "lacks some samples"),
    "above the largest": ([[0, 1], [0, 1, 2]], CUT, "batch 1 .*3 samples.*largest=2"),
    "longer than its length": (Wrong([[0], [1]]), Passes(2), "more batches than the 1"),
    "longer, poisson": (Wrong([[0], [1]]), Poisson(0.5), "more batches than the 1"),
    "longer than declared": (NoLength([[0], [1]]), Passes(1), "more batches than the 1"),
    "no batches": (NoLength([]), Passes(1), "yielded no batch"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_keeps_its_word_is_accepted_in_every_pass(case):
    batches, accounted_as = ACCEPTED[case]
    loader = own_loader(batches, accounted_as)
    for _ in range(2):
        assert drawn(loader) == [list(batch) for batch in batches]


@pytest.mark.parametrize("case", REFUSED)
def test_what_breaks_its_word_is_refused(case):
    batches, accounted_as, message = REFUSED[case]
    with pytest.raises(SamplingError, match=message):
        drawn(own_loader(batches, accounted_as))


def test_its_error_is_one_of_ours():
    assert issubclass(SamplingError, QuietgradError)


def test_torch_samplers():
    generator = torch.Generator().manual_seed(0)
    shuffled = BatchSampler(RandomSampler(Indices(), generator=generator), 7, drop_last=False)
    loader = own_loader(shuffled, Passes(6), Indices())
    passes = [drawn(loader) for _ in range(2)]
    assert passes[0] != passes[1]
    for batches in passes:
        assert sorted(i for batch in batches for i in batch) == list(range(POPULATION))


def test_torch_sampling_with_replacement_is_not_shuffling():
    generator = torch.Generator().manual_seed(0)
    sampler = RandomSampler(Indices(), replacement=True, generator=generator)
    with pytest.raises(SamplingError, match=r"twice|for time 2"):
        drawn(own_loader(BatchSampler(sampler, 7, drop_last=False), Passes(6), Indices()))


def test_every_pass_is_counted_by_itself():
    loader = own_loader([[0, 1], [2, 3]], Passes(2))
    next(iter(loader)).discard()  # broken off after the first batch
    assert drawn(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_batches_before_the_wrong_one_are_in_order(num_workers):
    batches = iter(
        own_loader([[0, 1], [2, 3], [0]], Passes(3), num_workers=num_workers, physical_batch_size=1)
    )
    assert [content(next(batches)) for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(SamplingError, match=r"batch 2 .*index 0"):
        next(batches)


class Broken(NoLength):
    def __iter__(self):
        yield [0]
        raise KeyError("lost")


def test_errors_of_the_sampler_come_through():
    batches = iter(own_loader(Broken([]), Passes(2)))
    assert content(next(batches)) == [0]
    with pytest.raises(KeyError, match="lost"):
        next(batches)


def endless():
    while True:
        yield [0]


class Itself(Sampler):
    """An iterator by the back door: iterating it gives itself."""

    def __iter__(self):
        return self

    def __next__(self):
        return [0]


ONE_SHOT = [endless(), iter([[0]]), map(list, [[0]]), Itself()]


@pytest.mark.parametrize("batches", ONE_SHOT, ids=lambda batches: type(batches).__name__)
def test_what_can_be_walked_only_once_is_refused(batches):
    with pytest.raises(TypeError, match=f"{type(batches).__name__}.* only once"):
        OwnSampler(batches, Passes(1))


class Drained(NoLength):
    """A generator by the back door: empty from the second pass on."""

    def __init__(self, batches):
        super().__init__(iter(batches))


def test_a_pass_that_is_empty_because_the_first_took_all_is_refused():
    loader = own_loader(Drained([[0]]), Passes(1))
    assert drawn(loader) == [[0]]
    with pytest.raises(SamplingError, match="yielded no batch"):
        drawn(loader)


def test_a_data_loader_is_no_batch_sampler():
    with pytest.raises(TypeError, match=r"Pass its \.batch_sampler"):
        OwnSampler(DataLoader(FOUR, batch_size=2), Passes(2))


def test_what_cannot_be_iterated_is_refused():
    with pytest.raises(TypeError, match="got int, which cannot be iterated"):
        OwnSampler(3, Passes(1))


@pytest.mark.parametrize("declared", [None, "poisson", Passes, 0.1])
def test_without_a_declared_accounting_nothing_is_accepted(declared):
    with pytest.raises(TypeError, match="does not say how samples take part"):
        OwnSampler([[0]], declared)


class WithoutLength(SequentialSampler):
    def __len__(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    "batches",
    [
        NoLength([[0]]),
        BatchSampler(WithoutLength(FOUR), 2, False),
        BatchSampler(NoLength([0]), 2, False),
    ],
    ids=["own", "failing", "lacking"],
)
@pytest.mark.parametrize("declared", [Poisson(0.5), CUT, FullBatch()], ids=repr)
def test_a_length_is_needed_where_the_declaration_has_none(batches, declared):
    with pytest.raises(TypeError, match="give it a __len__"):
        OwnSampler(batches, declared).bind(4, 2)
    assert OwnSampler(batches, Passes(2)).bind(4, 2).length == 2


def test_a_sampler_without_batches_is_refused():
    with pytest.raises(ValueError, match=r"len\(batch_sampler\)=0"):
        OwnSampler([], Passes(1)).bind(4, 2)


def test_a_pass_longer_than_declared_is_refused_at_once():
    with pytest.raises(SamplingError, match=r"has 2 batches, and Passes\(length=1, times=1\)"):
        OwnSampler([[0], [1]], Passes(1)).bind(4, 2)


def test_the_accounting_is_never_kinder_than_what_is_known():
    def bound(declared):
        return OwnSampler([[0], [1]], declared).bind(4, 2).accounting

    # With passes of five steps, ten steps would count as two passes; they are five of these.
    assert bound(Passes(5, times=3)) == Passes(2, times=3)
    assert bound(TruncatedPoisson(0.5, 2, population=3)) == TruncatedPoisson(0.5, 2, population=4)
    assert bound(TruncatedPoisson(0.5, 2, population=9)) == TruncatedPoisson(0.5, 2, population=9)
    assert bound(Poisson(0.5)) == Poisson(0.5)
    assert bound(FullBatch()) == FullBatch()
