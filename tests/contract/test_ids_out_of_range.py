"""Ids and offsets that torch refuses are refused while a model is captured, with torch's words."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn, tensor

import quietgrad as qg
from quietgrad.capture import Capture

from .cases.table import Net, score

ROWS = 5
GOOD = tensor([[0, 4], [2, 3], [1, 1]])
LOOK_UPS = {
    "module": lambda w, i: nn.functional.embedding(i, w),
    "padding": lambda w, i: F.embedding(i, w, padding_idx=-1),
    "native": lambda w, i: torch.embedding(w, i),
    "index-select": lambda w, i: w.index_select(0, i.flatten()).view(len(i), -1),
    "indexed": lambda w, i: w[i],
    "indexed-by-a-tuple": lambda w, i: w[i, :],
    "derived": lambda w, i: F.embedding(i, 2 * w),
    "bag-sum": lambda w, i: F.embedding_bag(i, w, mode="sum"),
    "bag-mean": lambda w, i: F.embedding_bag(i, w, mode="mean"),
    "bag-max": lambda w, i: F.embedding_bag(i, w, mode="max"),
    "bag-offsets": lambda w, i: F.embedding_bag(i.flatten(), w, 2 * torch.arange(len(i))),
}
BAD = {
    "just-outside": tensor([[0, 4], [2, ROWS], [1, 1]]),
    "far-outside": tensor([[0, 4], [2, 3], [10**6, 1]]),
    "too-far-from-the-end": tensor([[0, 4], [2, -ROWS - 1], [1, 1]]),
}


def net(look_up):
    torch.manual_seed(0)
    return Net(lambda m, *ids: look_up(m.w, *ids), w=torch.randn(ROWS, 3))


def complaint_of(run):
    """What an error says; only the first line, for the place in torch's sources may follow."""
    with pytest.raises((IndexError, RuntimeError, ValueError, AssertionError)) as caught:
        run()
    return type(caught.value), str(caught.value).splitlines()[0]


def assert_same_complaint(model, *inputs):
    """The captured forward raises by itself: nothing has to be back-propagated first."""
    expected = complaint_of(lambda: model(*inputs))
    capture = Capture(model)
    try:
        capture.begin(len(inputs[0]))
        assert complaint_of(lambda: model(*inputs)) == expected
    finally:
        capture.detach()


@pytest.mark.parametrize("ids", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS.keys())
def test_an_id_outside_of_the_table(look_up, ids):
    assert_same_complaint(net(look_up), ids)


@pytest.mark.parametrize("name", [n for n in LOOK_UPS if not n.startswith("indexed")])
def test_a_negative_id(name):
    assert_same_complaint(net(LOOK_UPS[name]), tensor([[0, 4], [2, -1], [1, 1]]))


def test_an_id_outside_of_the_table_of_a_module():
    model = nn.Sequential(nn.Embedding(ROWS, 3), nn.Flatten(), nn.Linear(6, 2))
    assert_same_complaint(model, tensor([[0, 4], [2, ROWS], [1, 1]]))


@pytest.mark.parametrize("look_up", LOOK_UPS.values(), ids=LOOK_UPS.keys())
def test_all_good_ids_are_exact(look_up):
    model = net(look_up)
    found = qg.per_sample_grads(model, lambda: score(model(GOOD)))["w"]
    for sample, ids in enumerate(GOOD):
        (truth,) = torch.autograd.grad(score(model(ids[None])).sum(), model.w)
        torch.testing.assert_close(found[sample], truth)


@pytest.mark.parametrize("padding", [ROWS, -ROWS - 1])
def test_padding_outside_of_the_table(padding):
    assert_same_complaint(net(lambda w, i: F.embedding(i, w, padding_idx=padding)), GOOD)
    assert_same_complaint(net(lambda w, i: F.embedding_bag(i, w, padding_idx=padding)), GOOD)


@pytest.mark.parametrize("padding", [ROWS, -1, -2])
def test_padding_of_the_native_look_up_that_is_no_row(padding):
    model = net(lambda w, i: torch.embedding(w, i, padding))
    found = qg.per_sample_grads(model, lambda: score(model(GOOD)))["w"]
    (truth,) = torch.autograd.grad(score(model(GOOD)).sum(), model.w)
    torch.testing.assert_close(found.sum(0), truth)


@pytest.mark.parametrize("offsets", [[1, 2, 4], [0, 2, 7]], ids=["not-from-zero", "behind-the-end"])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_offsets_that_torch_refuses(mode, offsets):
    model = net(lambda w, i: F.embedding_bag(i.flatten(), w, tensor(offsets), mode=mode))
    assert_same_complaint(model, GOOD)


def test_offsets_with_two_dimensions_of_ids():
    assert_same_complaint(net(lambda w, i: F.embedding_bag(i, w, tensor([0, 2, 4]))), GOOD)


@pytest.mark.parametrize(
    ("offsets", "options"),
    [([0, 4, 2], {}), ([0, 2, 4, 5], {"include_last_offset": True})],
    ids=["decreasing", "ids-of-no-bag"],
)
def test_offsets_of_which_torch_makes_something_else_than_bags(offsets, options):
    model = net(lambda w, i: F.embedding_bag(i.flatten(), w, tensor(offsets), **options))
    # On some CPUs torch's own kernel complains, before anything is captured.
    refused = qg.errors.UnsupportedOperationError, RuntimeError
    with pytest.raises(refused, match=r"'w': the offsets of the bags|index_size"):
        qg.per_sample_grads(model, lambda: score(model(GOOD)))
