"""Views of a sample are clipped as one: against a loop over samples, alone and with momentum."""

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.contract.oracle import loop
from torch import nn

import quietgrad as qg
from quietgrad import transforms
from quietgrad.errors import LossError, SampleMixingError

from .helpers import COUNT, attach, clipped, losses, made, weights_of

VIEWS = 3


class Fixed:
    """Views that are the same each time, so that a loop can see them too."""

    def __call__(self, rows):
        place = torch.arange(len(rows), dtype=rows.dtype) % VIEWS
        return rows * (1 + place.view(-1, *[1] * (rows.ndim - 1)))


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise"])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_sums_are_those_of_a_loop(name, grouping):
    model, data = made(name)
    x, y = data.tensors
    views = qg.SelfAugmentation(Fixed(), views=VIEWS)
    truth = loop(model, lambda i: views.losses(model, x[i], y[i], F.cross_entropy), COUNT)
    found = qg.clipped_sum(
        model, lambda: views.losses(model, x, y, F.cross_entropy), grouping=grouping
    )
    for key, expected in clipped(truth, found.groups, "auto-s").items():
        torch.testing.assert_close(found.grads[key], expected, rtol=1e-9, atol=1e-12)


def test_one_original_view_is_the_plain_engine():
    x, y = made("cnn")[1].tensors
    views = qg.SelfAugmentation(transforms.Flip(), views=1, keep_original=True)
    found = []
    for compute in (losses, lambda m, x, y: views.losses(m, x, y, F.cross_entropy)):
        model, data = made("cnn")
        engine = attach(model, data, seed=1)
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(compute(model, x, y))
            engine.step()
        found.append(weights_of(model))
    for key in found[0]:
        assert torch.equal(found[0][key], found[1][key])


def test_the_first_view_may_be_the_sample():
    images = torch.rand(2, 1, 6, 6)
    views = qg.SelfAugmentation(lambda rows: rows * 0, views=3, keep_original=True)
    rows = views(images)
    assert torch.equal(rows[[0, 3]], images)
    assert not rows[[1, 2, 4, 5]].any()


@pytest.mark.parametrize("chosen", [transforms.Flip(), transforms.Crop(2), transforms.Erase(1.0)])
def test_every_view_is_changed_in_its_own_way(chosen):
    torch.manual_seed(0)
    images = torch.rand(1, 2, 8, 8) + 0.1
    rows = qg.SelfAugmentation(chosen, views=32)(images)
    assert rows.shape == (32, 2, 8, 8)
    assert len({tuple(row.flatten().tolist()) for row in rows}) > 1
    assert repr(transforms.Chain(chosen, chosen)).count(repr(chosen)) == 2


def test_a_crop_moves_and_an_erasure_erases():
    torch.manual_seed(0)
    images = torch.arange(64.0).view(1, 1, 8, 8).repeat(40, 1, 1, 1) + 1
    moved = transforms.Crop(1)(images)
    assert {float(v) for v in moved[:, 0, 4, 4]} == {
        28 + r * 8 + c for r in (0, 1, 2) for c in (0, 1, 2)
    }
    erased = (transforms.Erase(1.0, share=(0.1, 0.5))(images) == 0).float().mean((1, 2, 3))
    assert erased.min() > 0.04
    assert erased.max() < 0.6


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: qg.SelfAugmentation(transforms.Flip(), views=0), "views"),
        (lambda: qg.SelfAugmentation(transforms.Flip(), views=2.5), "views"),
        (lambda: transforms.Flip(1.5), "probability"),
        (lambda: transforms.Crop(0), "pixels"),
        (lambda: transforms.Crop(9)(torch.rand(1, 1, 8, 8)), "pixels"),
        (lambda: transforms.Erase(share=(0.5, 0.1)), "share"),
        (lambda: transforms.Flip()(torch.rand(4, 8)), "height"),
        (lambda: qg.SelfAugmentation(lambda rows: rows[1:], views=2)(torch.rand(2, 4)), "one row"),
    ],
)
def test_bad_input(wrong, named):
    with pytest.raises(ValueError, match=named):
        wrong()


MIXING = {
    "mixup": lambda rows: 0.5 * (rows + rows.flip(0)),
    "statistics": lambda rows: rows - rows.mean(0),
    "permuted": lambda rows: rows[torch.randperm(len(rows))],
    "neighbours": lambda rows: 0.5 * (rows + rows.view(-1, 4, 1, 4, 4).flip(1).view(rows.shape)),
    "the one before": lambda rows: 0.5 * (rows + rows.roll(2, 0)),
    "its number": lambda rows: rows / len(rows),
    "numpy": lambda rows: rows.lerp(rows.flip(0), float(np.random.rand())),  # noqa: NPY002
    "python": lambda rows: rows.lerp(rows.flip(0), random.random()),
}


@pytest.mark.parametrize("name", MIXING)
def test_transforms_that_mix_samples_are_refused(name):
    views = qg.SelfAugmentation(MIXING[name], views=2)
    for _ in range(2):  # the second time, too
        with pytest.raises(SampleMixingError, match="mixes samples"):
            views(torch.rand(6, 1, 4, 4))


DRAWING = {
    "its number": lambda rows: (rows + torch.rand(len(rows), 1, 1, 1)) / len(rows),
    "its draws": lambda rows: rows + torch.rand(len(rows), 1, 1, 1).mean(),
    "one draw": lambda rows: (rows + torch.rand(())) * (1 + (len(rows) > 2)),
}


@pytest.mark.parametrize("name", DRAWING)
def test_what_mixes_with_fewer_samples_only_is_refused_though_it_draws(name):
    views = qg.SelfAugmentation(DRAWING[name], views=2)
    with pytest.raises(SampleMixingError, match="left out"):
        views(torch.rand(6, 1, 4, 4))


APART = {
    "for each row": lambda rows: rows + torch.randn_like(rows),
    "for all": lambda rows: rows * torch.rand(()),
    "in a loop": lambda rows: torch.stack([row * torch.rand(()) for row in rows]),
    "numpy": lambda rows: rows * torch.as_tensor(np.random.rand(len(rows), 1, 1, 1)),  # noqa: NPY002
    "for all, python": lambda rows: rows * random.random(),
}


@pytest.mark.parametrize("name", APART)
def test_draws_that_keep_samples_apart_pass(name):
    views = qg.SelfAugmentation(APART[name], views=2)
    for samples in (6, 3, 2):
        views(torch.rand(samples, 1, 4, 4))


def test_samples_that_are_not_finite_hide_nothing():
    views = qg.SelfAugmentation(MIXING["the one before"], views=2)
    images = torch.rand(6, 1, 4, 4)
    images[2] = torch.nan
    with pytest.raises(SampleMixingError, match="mixes samples"):
        views(images)
    images[:] = torch.nan
    qg.SelfAugmentation(transforms.Flip(), views=2)(images)


def test_what_mixes_now_and_then_is_found():
    """Eight calls are all looked at; draws are fixed, so that this never fails by chance."""
    torch.manual_seed(0)
    views = qg.SelfAugmentation(
        lambda rows: rows + rows.flip(0) if torch.rand(()) < 0.5 else rows, views=1
    )
    with pytest.raises(SampleMixingError, match="mixes samples"):
        for _ in range(8):
            views(torch.rand(6, 1, 4, 4))
    with pytest.raises(SampleMixingError, match="mixes samples"):
        views(torch.rand(1, 1, 4, 4))  # refused for good


def test_transforms_are_looked_at_ever_more_rarely():
    calls = []
    views = qg.SelfAugmentation(lambda rows: calls.append(None) or rows, views=1)
    often = []
    for _ in range(33):
        calls.clear()
        views(torch.rand(3, 2))
        often.append(len(calls) > 1)
    assert [place + 1 for place, looked in enumerate(often) if looked] == [*range(1, 9), 16, 32]


def test_batches_of_one_do_not_count():
    views = qg.SelfAugmentation(MIXING["statistics"], views=1)
    for _ in range(9):
        views(torch.rand(1, 1, 4, 4))
    with pytest.raises(SampleMixingError):
        views(torch.rand(3, 1, 4, 4))


def test_draws_that_cannot_be_repeated_are_told_of():
    generator = torch.Generator().manual_seed(0)
    views = qg.SelfAugmentation(lambda x: x + torch.rand(x.shape, generator=generator), views=2)
    with pytest.warns(UserWarning, match="cannot be verified") as caught:
        views(torch.rand(3, 2))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        views(torch.rand(3, 2))  # said once


def test_loss_modules_are_refused():
    views = qg.SelfAugmentation(transforms.Flip(), views=2)
    images, labels = torch.rand(3, 1, 2, 2), torch.zeros(3, dtype=torch.long)
    for loss in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss):
        with pytest.raises(TypeError, match=r"CrossEntropyLoss.*F\.cross_entropy"):
            views.losses(nn.Flatten(), images, labels, loss)


def test_it_says_what_it_is():
    views = qg.SelfAugmentation(transforms.Flip(), views=2, keep_original=True)
    assert repr(views) == "SelfAugmentation(Flip(probability=0.5), 2 views, the first as it is)"


def test_draws_are_not_used_up_by_verification():
    images = torch.rand(4, 1, 8, 8)
    found = []
    for verified in (False, True):
        views = qg.SelfAugmentation(transforms.Crop(2), views=2)
        views._watch._seen = 8 if verified else 0
        torch.manual_seed(5)
        found.append(views(images))
    assert torch.equal(*found)


def test_views_that_do_not_divide_the_losses():
    views = qg.SelfAugmentation(transforms.Flip(), views=4)
    with pytest.raises(LossError, match="4 for each sample"):
        views.mean(torch.rand(6))
    with pytest.raises(TypeError, match="transform"):
        qg.SelfAugmentation(3)
