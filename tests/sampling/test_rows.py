"""Loading in one go: every kind of data set gives what torch's own loading gives."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, default_collate

from quietgrad.errors import DataError
from quietgrad.sampling import BatchLoader, PoissonSampler
from quietgrad.sampling.loader import Rows

SIZE = 60


class Doubled(TensorDataset):
    """A subclass that makes something else of its tensors."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 2 * x, y


class Drawing(TensorDataset):
    """A subclass that draws from torch's generator."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + torch.rand(()), y


class InOneGo(Dataset):
    """Fetches many at once, and remembers how many."""

    def __init__(self):
        self.fetched = []

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return {"x": torch.full((3,), float(index)), "name": str(index)}

    def __getitems__(self, indices):
        self.fetched.append(len(indices))
        return [self[index] for index in indices]


def columns():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(SIZE, 3, 4, 5, generator=generator)
    return images, torch.arange(SIZE)


def with_overridden_instance():
    data = TensorDataset(*columns())
    data.__getitems__ = lambda indices: [(torch.tensor(-1), index) for index in indices]
    return data


def with_overridden_part():
    data = Subset(TensorDataset(*columns()), range(5, 35))
    data.__getitems__ = lambda indices: [(torch.tensor(-1), index) for index in indices]
    return Subset(data, range(20))


NUMBERS = torch.arange(SIZE)
IN_ONE_GO = {
    "tensors": lambda: TensorDataset(*columns()),
    "a single tensor": lambda: TensorDataset(NUMBERS),
    "dtypes": lambda: TensorDataset(
        NUMBERS.half(), NUMBERS.bfloat16(), NUMBERS % 2 == 0, NUMBERS.cfloat(), NUMBERS.byte()
    ),
    "a row without numbers": lambda: TensorDataset(torch.empty(SIZE, 0, 2), NUMBERS),
    "one pixel": lambda: TensorDataset(torch.randn(SIZE, 7, 1, 1), torch.randn(SIZE, 1, 5, 5)),
    "part": lambda: Subset(TensorDataset(*columns()), range(5, 35)),
    "part in another order": lambda: Subset(TensorDataset(*columns()), [7, 3, 3, 50, 0, 9, 1, 2]),
    "part by a tensor": lambda: Subset(TensorDataset(*columns()), torch.randperm(SIZE)[:30]),
    "part by an array": lambda: Subset(TensorDataset(*columns()), np.arange(30)),
    "part of a part": lambda: Subset(
        Subset(TensorDataset(*columns()), range(0, SIZE, 2)), range(20, 0, -1)
    ),
}
# Not taken at once, for what they hold.
UNUSUAL = {
    "from the end": lambda: Subset(TensorDataset(*columns()), [-1, -2, 3, 4, 5, 6, 7, 8]),
    "part by bytes": lambda: Subset(TensorDataset(*columns()), torch.ones(12, dtype=torch.uint8)),
    "several rows each": lambda: Subset(TensorDataset(*columns()), [[0, i] for i in range(12)]),
    "slices": lambda: Subset(TensorDataset(*columns()), [slice(i, i + 2) for i in range(12)]),
    "channels last": lambda: TensorDataset(
        columns()[0].to(memory_format=torch.channels_last), NUMBERS
    ),
    "transposed": lambda: TensorDataset(columns()[0].transpose(1, 3), NUMBERS),
    "expanded": lambda: TensorDataset(torch.randn(1, 4).expand(SIZE, 4), NUMBERS),
    "conjugate": lambda: TensorDataset(torch.randn(SIZE, 2, dtype=torch.cfloat).conj()),
    "with gradients": lambda: TensorDataset(nn.Parameter(torch.randn(SIZE, 2)), NUMBERS),
}
ONE_BY_ONE = {
    "subclass": lambda: Doubled(*columns()),
    "subclass that draws": lambda: Drawing(*columns()),
    "part of a subclass": lambda: Subset(Doubled(*columns()), range(5, 35)),
    "joined": lambda: ConcatDataset([TensorDataset(*columns()), Doubled(*columns())]),
    "list": lambda: [(torch.tensor([i, 1.0]), i, str(i)) for i in range(SIZE)],
    "in one go of its own": InOneGo,
    "part of that": lambda: Subset(InOneGo(), range(5, 35)),
    "overridden for one object": with_overridden_instance,
    "overridden for a part": with_overridden_part,
}
ALL = {**IN_ONE_GO, **UNUSUAL, **ONE_BY_ONE}


def expected(data, indices, collate):
    """As torch's DataLoader does without workers."""
    fetch = getattr(data, "__getitems__", None)
    return collate(fetch(indices) if fetch else [data[index] for index in indices])


def require_same(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert found.stride() == wanted.stride()
        assert found.requires_grad == wanted.requires_grad
        assert found.is_conj() == wanted.is_conj()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            require_same(found[name], wanted[name])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            require_same(one, other)
    else:
        assert found == wanted


def loader_of(data, **options):
    draws = PoissonSampler().bind(len(data), 6)
    return BatchLoader(data, draws, physical_batch_size=4, seed=3, **options)


def as_tuple(elements):
    return tuple(default_collate(elements))


@pytest.mark.parametrize(
    "options",
    [{}, {"collate_fn": as_tuple}, {"lengths": True}],
    ids=["plain", "collate_fn", "lengths"],
)
@pytest.mark.parametrize("kind", ALL)
def test_micro_batches_are_those_of_torch(kind, options):
    data = ALL[kind]()
    if "collate_fn" in options and kind in ("in one go of its own", "part of that"):
        options = {"collate_fn": list}
    if options.get("lengths"):
        options = {"lengths": [(7 * i) % 11 for i in range(len(data))]}
    collate = options.get("collate_fn", default_collate)
    loader, seen = loader_of(data, **options), 0
    torch.manual_seed(0)
    found = [(list(batch.indices), list(batch)) for batch in loader]
    torch.manual_seed(0)
    for indices, micro_batches in found:
        assert len(indices) == len(micro_batches)
        for some, micro_batch in zip(indices, micro_batches, strict=True):
            require_same(micro_batch, expected(data, some, collate))
            seen += len(some)
    assert seen


@pytest.mark.parametrize("kind", ["tensors", "part", "subclass", "joined", "in one go of its own"])
def test_workers_make_the_same(kind):
    data = ALL[kind]()
    alone = [micro for batch in loader_of(data) for micro in batch]
    shared = [micro for batch in loader_of(data, num_workers=1) for micro in batch]
    require_same(shared, alone)


def test_only_plain_data_is_taken_at_once():
    assert all(Rows.can_load(make()) for make in {**IN_ONE_GO, **UNUSUAL}.values())
    assert not any(Rows.can_load(make()) for make in ONE_BY_ONE.values())


@pytest.mark.parametrize("kind", IN_ONE_GO)
def test_no_element_is_loaded_by_itself(kind, monkeypatch):
    data = IN_ONE_GO[kind]()
    monkeypatch.setattr("quietgrad.sampling.loader.default_collate", None)
    for batch in loader_of(data):
        for micro_batch in batch:
            assert isinstance(micro_batch, list)


def test_what_somebody_made_of_torchs_own_class_is_not_passed_by(monkeypatch):
    plain = TensorDataset.__getitem__
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, i: (-plain(self, i)[0],))
    for batch in loader_of(TensorDataset(NUMBERS)):
        for indices, (numbers,) in zip(batch.indices, batch, strict=True):
            assert numbers.tolist() == [-i for i in indices]


def test_a_data_set_that_returns_nothing_for_a_micro_batch():
    data = InOneGo()
    data.__getitems__ = lambda indices: []
    with pytest.raises(DataError, match="one element for each index"):
        for batch in loader_of(data):
            list(batch)


def test_a_data_set_of_its_own_is_asked_once_for_each_micro_batch():
    data = InOneGo()
    sizes = []
    for batch in loader_of(data):
        sizes += batch.micro_sizes
        list(batch)
    assert data.fetched == sizes


@pytest.mark.parametrize("kind", [*IN_ONE_GO, *UNUSUAL])
def test_writing_to_a_micro_batch_leaves_the_data_alone(kind):
    data = {**IN_ONE_GO, **UNUSUAL}[kind]()
    whole = data
    while isinstance(whole, Subset):
        whole = whole.dataset
    before = [tensor.detach().clone() for tensor in whole.tensors]
    for batch in loader_of(data):
        for micro_batch in batch:
            for column in micro_batch:
                column.detach().zero_()
    for tensor, copy in zip(whole.tensors, before, strict=True):
        assert torch.equal(tensor, copy)


def test_tensors_may_be_replaced_between_batches():
    data = TensorDataset(NUMBERS)
    for batch in loader_of(data):
        data.tensors = (data.tensors[0] + SIZE,)
        for indices, (numbers,) in zip(batch.indices, batch, strict=True):
            assert numbers.tolist() == [data.tensors[0][i].item() for i in indices]


def test_a_place_that_is_not_there_is_refused_as_before():
    data = Subset(TensorDataset(*columns()), [SIZE] * 8)
    with pytest.raises(IndexError, match=f"index {SIZE} is out of bounds"):
        for batch in loader_of(data):
            list(batch)


def test_a_default_device_does_not_move_the_batches():
    with torch.device("meta"):
        (numbers,) = Rows(TensorDataset(NUMBERS)).__getitems__([5, 1])
    assert numbers.tolist() == [5, 1]
