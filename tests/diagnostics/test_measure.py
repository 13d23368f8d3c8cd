import copy
import json
import math
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quietgrad as qg
from quietgrad import clipping, grouping
from quietgrad.diagnostics import Measurement, measure
from quietgrad.diagnostics.measure import division

from .helpers import EXACT, MODELS, assert_same, expected, made
from .points import Point, point

SIZES = (1, 2, 4)


@pytest.mark.parametrize("style", ["all-layer", "layer-wise", "param-wise"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("function", clipping.names())
def test_as_by_loops(name, function, style):
    subject = made(name)
    options = {"clipping": function, "grouping": style, "radius": 0.7}
    measured = measure(subject.model, subject.losses, averages=SIZES, **options)
    groups = grouping.resolve(style, subject.model, 0.7)
    truth = expected(subject.gradients(), groups, clipping.resolve(function), SIZES)
    assert_same(measured.to_dict(), truth)


@pytest.mark.parametrize("budget", [1, 8 * 20 * 3, 8 * 20 * 8])
def test_little_memory_changes_nothing(budget):
    subject = made("words")
    whole = measure(subject.model, subject.losses, averages=SIZES)
    split = measure(subject.model, subject.losses, averages=SIZES, memory_budget=budget)
    assert_same(split.to_dict(), whole.to_dict())


@pytest.mark.parametrize("budget", [1, 64, 4000])
def test_no_more_is_materialize_than_the_budget_allows(budget, monkeypatch):
    subject, seen = made("mlp"), []
    module = sys.modules[measure.__module__]  # the package has a function of its name
    materialized = module._materialize

    def watched(factor, samples):
        grads = materialized(factor, samples)
        seen.append((grads.numel() * 8, len(grads)))
        return grads

    monkeypatch.setattr(module, "_materialize", watched)
    measure(subject.model, subject.losses, averages=(), memory_budget=budget)
    assert all(size <= budget or samples == 1 for size, samples in seen)


def test_the_sum_is_that_of_clipped_sum():
    subject = made("cnn")
    options = {"clipping": "psac", "grouping": "layer-wise", "radius": 0.3}
    measured = measure(subject.model, subject.losses, averages=(), **options)
    clipped = qg.clipped_sum(subject.model, subject.losses, **options)
    length = torch.cat([g.flatten() for g in clipped.grads.values()]).norm().item()
    assert measured.mean_clipped_norm == pytest.approx(length / 9, rel=EXACT)


def test_normalized_gradients_may_cancel_although_the_gradient_is_not_zero():
    """The example of "... Clipping Bias Reduction": F(w) = (w - 1)^2 + (w + 3)^2 at w = 0."""
    measured = point(1.0, -3.0, clipping="auto-v")
    assert measured.mean_gradient_norm == 2.0  # of -2 and 6
    assert measured.mean_clipped_norm == 0.0
    assert measured.clipped_cosine is None
    assert measured.sampling_noise == pytest.approx(32.0)  # 4^2 + 4^2, over one less than two
    assert measured.relative_noise == pytest.approx(math.sqrt(32) / 2)
    assert measured.clipped == {"all": 1.0}
    assert measured.averages[0].normalized_cosine is None
    assert point(1.0, -3.0, clipping="abadi", radius=4.0).clipped_cosine == pytest.approx(1.0)
    assert point(1.0, -3.0, clipping="abadi", radius=4.0).clipped == {"all": 0.5}


def test_at_the_optimum_there_is_noise_and_no_direction():
    measured = point(1.0, -3.0, start=-1.0)
    assert (measured.mean_gradient_norm, measured.norms.q50) == (0.0, 4.0)
    assert measured.relative_noise is measured.cosines is measured.clipped_cosine is None
    json.dumps(measured.to_dict(), allow_nan=False)


def test_equal_samples_have_no_noise():
    subject = made("mlp")
    x, y = subject.x[:1].expand(6, -1), subject.y[:1].expand(6)
    closure = lambda: F.cross_entropy(subject.model(x), y, reduction="none")  # noqa: E731
    measured = measure(subject.model, closure, averages=(2,))
    assert measured.sampling_noise == measured.relative_noise == 0.0
    assert measured.cosines.q05 == pytest.approx(1.0)
    assert measured.averages[0].sampling_noise == 0.0


def test_noise_is_estimated_without_bias():
    """Over all pairs of a data set the estimates average to its own, for samples and averages."""
    data = [0.0, 1.0, 5.0, -2.0]
    pairs = [(a, b) for i, a in enumerate(data) for b in data[i + 1 :]]
    estimates = [point(*pair).sampling_noise for pair in pairs]
    assert sum(estimates) / len(pairs) == pytest.approx(point(*data).sampling_noise)


def test_the_average_of_all_is_the_mean():
    subject = made("mlp", 4)
    (whole,) = measure(subject.model, subject.losses, averages=(4,)).averages
    assert (whole.size, whole.count, whole.sampling_noise) == (4, 1, None)
    assert whole.cosine == pytest.approx(1.0)
    assert whole.normalized_cosine == pytest.approx(1.0)


def test_gradients_that_are_not_finite_are_counted_and_left_out():
    model = Point()
    s = torch.tensor([1.0, float("inf"), -3.0], dtype=torch.float64)
    measured = measure(model, lambda: model(s), averages=(1,), clipping="auto-v")
    assert (measured.samples, measured.nonfinite) == (2, 1)
    assert measured.mean_gradient_norm == 2.0
    assert measured.mean_clipped_norm == 0.0


class Plane(nn.Module):
    """Two parameters, each with its own part of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = (nn.Parameter(torch.zeros(()).double()) for _ in range(2))

    def forward(self, samples):
        return (self.w - samples[:, 0]).square() + (self.v - samples[:, 1]).square()


def test_a_group_is_clipped_without_those_that_are_not_finite_in_it():
    model = Plane()
    s = torch.tensor([[1.0, 2.0], [float("inf"), 5.0], [3.0, -1.0]], dtype=torch.float64)
    options = {"grouping": "param-wise", "clipping": "abadi", "radius": 3.0}
    measured = measure(model, lambda: model(s), averages=(1,), **options)
    clipped = qg.clipped_sum(model, lambda: model(s), **options)
    length = torch.stack(list(clipped.grads.values())).norm().item()
    assert (measured.samples, measured.nonfinite) == (2, 1)
    assert measured.mean_clipped_norm == pytest.approx(length / 2, rel=EXACT)
    assert measured.clipped == {"w": 0.5, "v": 2 / 3}
    total, truth = torch.stack(list(clipped.grads.values())), -2 * s[[0, 2]].sum(0)
    angle = F.cosine_similarity(total, truth, dim=0).item()
    assert measured.clipped_cosine == pytest.approx(angle, rel=EXACT)


@pytest.mark.parametrize(("count", "size"), [(2, 1), (9, 2), (9, 4), (9, 9)])
def test_averages_share_no_sample_and_leave_few_out(count, size):
    places = division(count, size)
    assert places.shape == (count // size, size)
    assert len(places.unique()) == places.numel()
    assert places.unique().max() < count
    assert torch.equal(places, division(count, size))


def test_single_precision_is_measured_in_double():
    subject = made("mlp")
    exact = measure(subject.model, subject.losses, averages=(1,))
    model, x = copy.deepcopy(subject.model).float(), subject.x.float()
    closure = lambda: F.cross_entropy(model(x), subject.y, reduction="none")  # noqa: E731
    single = measure(model, closure, averages=(1,))
    assert single.sampling_noise == pytest.approx(exact.sampling_noise, rel=1e-5)
    assert single.clipped_cosine == pytest.approx(exact.clipped_cosine, rel=1e-5)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    F.cross_entropy(model(x), y).backward()
    before = [(p.grad, p.grad.clone()) for p in model.parameters()]
    state = torch.get_rng_state()
    measure(model, lambda: F.cross_entropy(model(x), y, reduction="none"), averages=(1,))
    assert torch.equal(state, torch.get_rng_state())
    for parameter, (grad, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is grad
        assert torch.equal(grad, value)


def test_it_says_that_it_is_not_private():
    subject = made("mlp")
    measured = measure(subject.model, subject.losses, averages=(1,))
    assert next(iter(measured.to_dict().items())) == ("not_private", True)
    assert "not_private=True" in repr(measured)
    assert str(measured).startswith("NOT PRIVATE")
    assert Measurement.from_dict(json.loads(json.dumps(measured.to_dict()))) == measured
