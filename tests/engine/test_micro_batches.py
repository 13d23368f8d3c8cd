"""Logical and physical batches: the same samples, the same sums, however they are cut up."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import quietgrad

from .helpers import QUIET, attach, data, flat, losses, mlp, train


@pytest.mark.parametrize("physical", [1, 3, 7])
def test_the_physical_batch_size_changes_nothing(physical):
    whole, cut = mlp(), mlp()
    for model, size in ((whole, None), (cut, physical)):
        train(attach(model, physical_batch_size=size), model, steps=7)
    torch.testing.assert_close(flat(cut), flat(whole), rtol=1e-12, atol=1e-12)


def test_micro_batches_are_no_larger_than_asked():
    model = mlp()
    engine = attach(model, physical_batch_size=3, batch_size=12)
    sizes = []
    for batch in engine.batches():
        for x, y in batch:
            sizes.append(len(x))
            engine.backward(losses(model, x, y))
        engine.step()
    assert max(sizes) == 3


def pairs():
    """Each clipping and each grouping has its turn; all pairs are `slow`."""
    groupings = "all-layer", "layer-wise", "param-wise", "type-wise"
    for i, clipping in enumerate(["abadi", "reparam", "global", "auto-v", "auto-s", "psac"]):
        for j, grouping in enumerate(groupings):
            marks = () if j == i % len(groupings) else pytest.mark.slow
            yield pytest.param(clipping, grouping, marks=marks)


@pytest.mark.parametrize(("clipping", "grouping"), [*pairs()])
def test_a_step_is_the_clipped_sum_over_the_expected_batch_size(clipping, grouping):
    model = mlp()
    options = {"clipping": clipping, "grouping": grouping, "radius": 0.5}
    engine = attach(model, noise_multiplier=QUIET, physical_batch_size=4, **options)
    sizes = []
    for batch in engine.batches():
        before, parts = copy.deepcopy(model), []
        for x, y in batch:
            parts.append((x, y))
            engine.backward(losses(model, x, y))
        start = flat(model)
        engine.step()
        x, y = (torch.cat(column) for column in zip(*parts, strict=True))
        sizes.append(len(x))
        closure = lambda m=before, x=x, y=y: losses(m, x, y)  # noqa: E731
        expected = quietgrad.clipped_sum(before, closure, **options).grads
        moved = torch.cat([expected[name].flatten() for name, _ in model.named_parameters()])
        torch.testing.assert_close(start - flat(model), moved / 8, rtol=0, atol=1e-8)
    assert set(sizes) != {8}, "the test should see batches of other sizes than the expected one"


def test_empty_batches_take_their_noise_step():
    model = mlp()
    engine = attach(model, batch_size=1)
    empty = full = 0
    for batch in engine.batches():
        before, drawn = flat(model), 0
        for x, y in batch:
            drawn += len(x)
            engine.backward(losses(model, x, y))
        engine.step()
        assert (flat(model) != before).all()
        empty, full = empty + (drawn == 0), full + (drawn > 0)
    assert empty > 2
    assert full > 2
    assert engine.steps_taken == empty + full == engine.steps_per_epoch


def test_batches_are_poisson_samples():
    """Sizes vary, every sample takes part, and no sample comes twice in a batch."""
    model = nn.Linear(1, 1)
    engine = attach(model, dataset=Numbers(), batch_size=10)
    sizes, counts = [], torch.zeros(60)
    for _ in range(10):
        for batch in engine.batches():
            drawn = torch.zeros(60)
            for x in batch:
                drawn[x.long()] += 1
                engine.backward(model(x[:, None]).flatten())
            engine.step()
            assert drawn.max() <= 1
            sizes.append(int(drawn.sum()))
            counts += drawn
    assert len(set(sizes)) > 5
    assert abs(sum(sizes) / len(sizes) - 10) < 2
    assert counts.min() > 0


class Numbers(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.tensor(float(index))


class Records(Dataset):
    """Elements that need a collate function of their own: dictionaries with lists."""

    def __init__(self, count=24):
        self.x, self.y = data(count).tensors

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"features": self.x[index].tolist(), "label": int(self.y[index])}


def collate(records):
    features = torch.tensor([r["features"] for r in records], dtype=torch.float64)
    return {"features": features, "label": torch.tensor([r["label"] for r in records])}


@pytest.mark.parametrize("workers", [0, 2])
def test_dictionaries_and_workers(workers):
    plain, model = mlp(), mlp()
    train(attach(plain, physical_batch_size=5), plain, steps=3)
    engine = attach(
        model, dataset=Records(), collate_fn=collate, num_workers=workers, physical_batch_size=5
    )
    for batch in engine.batches():
        for record in batch:
            engine.backward(losses(model, record["features"], record["label"]))
        engine.step()
    torch.testing.assert_close(flat(model), flat(plain))
