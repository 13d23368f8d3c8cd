"""Momentum, views and groups together: exact, and of the sensitivity that is stated."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from tests.contract.oracle import loop
from torch import nn

import quietgrad as qg
from quietgrad import clipping, grouping
from quietgrad.capture import Capture
from quietgrad.errors import SampleMixingError
from quietgrad.methods import Momentum
from quietgrad.reduction import ClippedReducer
from quietgrad.strategies import Evaluator

from .helpers import COUNT, MODELS, attach, clipped, distance, losses, made
from .test_self_augmentation import VIEWS, Fixed

OPTIONS = qg.InnerOuter(length=2, inner=0.5)


def plain(model, x, y):
    return losses(model, x, y)


def viewed(model, x, y):
    views = qg.SelfAugmentation(Fixed(), views=VIEWS)
    return views.losses(model, x, y, F.cross_entropy)


def travelled(name):
    """A model, its data, and a momentum that has seen two other weights."""
    model, data = made(name)
    momentum = Momentum(OPTIONS, lambda: dict(model.named_parameters()))
    for seed in (1, 2):
        momentum.remember()
        with torch.no_grad():
            for parameter in model.parameters():
                generator = torch.Generator().manual_seed(seed)
                noise = torch.randn(parameter.shape, generator=generator).double()
                parameter.add_(noise, alpha=0.3)
    return model, data, momentum


def summed(model, momentum, groups, function, compute, x, y):
    capture = Capture(model)
    try:
        capture.begin(len(x), verify=True)
        reducer = ClippedReducer(groups, clipping.resolve(function), Evaluator("auto"), len(x))
        momentum.backward(capture, lambda: compute(model, x, y), reducer)
        reducer.finish()
    finally:
        capture.detach()
    return reducer.grads


CASES = [(name, plain) for name in MODELS] + [("mlp", viewed), ("cnn", viewed)]


def combinations():
    """Each case meets each clipping and each grouping by default; all pairs of them are `slow`."""
    for i, case in enumerate(CASES):
        for j, style in enumerate(["all-layer", "layer-wise"]):
            for k, function in enumerate(["auto-s", "abadi"]):
                marks = () if (i + j + k) % 2 == 0 else pytest.mark.slow
                yield pytest.param(*case, style, function, marks=marks)


@pytest.mark.parametrize(("name", "compute", "style", "function"), [*combinations()])
def test_exact_and_no_more_sensitive_than_stated(name, compute, style, function):
    model, data, momentum = travelled(name)
    x, y = data.tensors
    groups = grouping.resolve(style, model, 0.1)
    found = summed(model, momentum, groups, function, compute, x, y)
    truth = None
    for weight, past in [*momentum.past_visits(), (1.0, None)]:
        here = {n: p.detach() for n, p in model.named_parameters()} if past is None else past
        with momentum.at(here):
            grads = loop(model, lambda i: compute(model, x[i], y[i]), COUNT)
        scaled = {n: weight * g for n, g in grads.items()}
        truth = scaled if truth is None else {n: truth[n] + scaled[n] for n in truth}
    for key, expected in clipped(truth, groups, function).items():
        torch.testing.assert_close(found[key], expected, rtol=1e-9, atol=1e-12)
    sensitivity = grouping.sensitivity(groups, clipping.resolve(function))
    for left_out in range(COUNT):
        rest = [i for i in range(COUNT) if i != left_out]
        part = summed(model, momentum, groups, function, compute, x[rest], y[rest])
        assert distance(found, part) <= sensitivity * (1 + 1e-6)


def normalized():
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(64, 3)).double()


def test_public_features_of_a_seed_are_not_repeated_and_that_is_said():
    publicly = qg.BatchClipping(torch.randn(50, 1, 6, 6).double(), p=2, seed=0)
    with pytest.raises(SampleMixingError, match="seed="):
        trained_by(lambda m, x, y: lambda: publicly.losses(m, x, y, F.cross_entropy), normalized())


def trained_by(make_closure, other=None, **options):
    """Three steps of an engine with inner momentum; the function is made for each micro-batch."""
    model, data = made("cnn")
    model = model if other is None else other
    engine = attach(model, data, momentum=OPTIONS, **options)
    for _ in range(3):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(make_closure(model, x, y))
            engine.step()
    return engine


def rolling(model, x, y):
    calls = itertools.count(1)

    def closure():
        by = next(calls)
        return losses(model, x.roll(by, 0), y.roll(by, 0))

    return closure


def test_samples_that_change_places_between_weights_are_refused():
    """A sample would be in several rows, each clipped by itself: more than the sensitivity."""
    with pytest.raises(SampleMixingError, match="change places"):
        trained_by(rolling)


def test_random_views_and_public_features_are_the_same_at_all_weights():
    views = qg.SelfAugmentation(qg.transforms.Chain(qg.transforms.Crop(1), qg.transforms.Flip()), 3)
    trained_by(lambda m, x, y: lambda: views.losses(m, x, y, F.cross_entropy))
    publicly = qg.BatchClipping(torch.randn(5, 1, 6, 6).double(), p=2)
    trained_by(lambda m, x, y: lambda: publicly.losses(m, x, y, F.cross_entropy), normalized())
    shuffled = lambda m, x, y: lambda: (lambda i: losses(m, x[i], y[i]))(torch.randperm(len(x)))  # noqa: E731
    assert trained_by(shuffled).steps_taken == 3
