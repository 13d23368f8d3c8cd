"""Samples whose gradient is infinite or not a number: they add nothing, and are counted."""

import pytest
import torch
from torch import nn

import quietgrad

from .helpers import Net, attach, clipped_one_by_one, only_batch, samples, squares, trainable

CLIPPINGS = ["abadi", "reparam", "global", "auto-v", "auto-s", "psac"]


def layers(net, x):
    return net.last(net.first(x))


def spoilt(x, value, index=2):
    x = x.clone()
    x[index, 0] = value
    return x


VALUES = [float("nan"), float("inf"), -float("inf")]


def combinations():
    """Each clipping meets each grouping and each strategy by default; all pairs are `slow`."""
    for i, clipping in enumerate(CLIPPINGS):
        for j, grouping in enumerate(["all-layer", "layer-wise", "param-wise"]):
            for k, strategy in enumerate(["ghost", "keep", "discard"]):
                marks = () if (i + j + k) % 3 == 0 else pytest.mark.slow
                yield pytest.param(clipping, grouping, strategy, marks=marks)


@pytest.mark.parametrize(("clipping", "grouping", "strategy"), [*combinations()])
def test_a_sample_that_is_not_finite_adds_nothing(clipping, grouping, strategy):
    model = Net(layers)
    clean = samples(5)
    options = {"clipping": clipping, "grouping": grouping, "strategy": strategy}
    others = torch.cat([clean[:2], clean[3:]])
    expected = quietgrad.clipped_sum(model, lambda: squares(model, others), **options)
    for value in VALUES:
        x = spoilt(clean, value)
        found = quietgrad.clipped_sum(model, lambda x=x: squares(model, x), **options)
        assert found.nonfinite == 1
        for name, total in found.grads.items():
            torch.testing.assert_close(total, expected.grads[name])


def test_a_sample_is_dropped_from_the_groups_where_it_is_not_finite():
    """tanh(inf) is finite: so is the gradient of the layer above it, and clipped as any other."""
    model = Net(lambda net, x: net.last(net.first(x).tanh()))
    x = spoilt(samples(5), float("inf"))
    found = quietgrad.clipped_sum(model, lambda: squares(model, x), grouping="layer-wise")
    dropped = {g.name: n for g, n in zip(found.groups, ~found.norms.isfinite().T, strict=True)}
    assert dropped["first"].tolist() == [False, False, True, False, False]
    assert not dropped["last"].any()
    assert found.nonfinite == 1
    assert all(total.isfinite().all() for total in found.grads.values())
    assert (found.weights * found.norms.nan_to_num(posinf=0.0) <= 1.0).all()


@pytest.mark.parametrize("value", VALUES)
def test_the_engine_counts_them_and_goes_on(value):
    model = Net(lambda net, x: net.last(net.first(x)))
    clean = samples(5)
    optimizer = torch.optim.SGD(trainable(model), lr=1.0)
    engine = attach(model, spoilt(clean, value), optimizer=optimizer, noise_multiplier=1e-9)
    expected = clipped_one_by_one(model, squares, torch.cat([clean[:2], clean[3:]]))
    before = [p.detach().clone() for p in trainable(model)]
    for batch in engine.batches():
        for (x,) in batch:
            engine.backward(squares(model, x))
        engine.step()
    assert engine.nonfinite_samples == 1
    for was, now, total in zip(before, trainable(model), expected, strict=True):
        torch.testing.assert_close(was - now.detach(), total / 5, rtol=0, atol=1e-7)


def test_a_batch_of_nothing_else_is_noise_alone():
    model = Net(layers)
    engine = attach(model, torch.full((3, 3), float("nan")).double())
    before = [p.detach().clone() for p in trainable(model)]
    engine.backward(squares(model, *only_batch(engine)))
    engine.step()
    assert engine.nonfinite_samples == 3
    for was, now in zip(before, trainable(model), strict=True):
        assert now.isfinite().all()
        assert (was != now).all(), "no parameter may be left without noise"


def test_losses_that_are_not_finite():
    model = Net(layers)
    x = samples(4)
    scale = torch.tensor([1.0, float("inf"), 1.0, float("nan")]).double()
    found = quietgrad.clipped_sum(model, lambda: scale * squares(model, x))
    expected = quietgrad.clipped_sum(model, lambda: squares(model, x[[0, 2]]))
    assert found.nonfinite == 2
    for name, total in found.grads.items():
        torch.testing.assert_close(total, expected.grads[name])


def test_gradients_too_large_to_square():
    """Finite entries whose squares overflow: clipped like any other gradient, not dropped."""
    model = nn.Linear(3, 2)
    x = torch.ones(3, 3) * torch.tensor([[1.0], [1e30], [1.0]])
    found = quietgrad.clipped_sum(model, lambda: model(x).sum(1), clipping="auto-v")
    assert found.nonfinite == 0
    alone = quietgrad.clipped_sum(model, lambda: model(x[::2]).sum(1), clipping="auto-v")
    added = {name: total - alone.grads[name] for name, total in found.grads.items()}
    torch.testing.assert_close(added["weight"], torch.full((2, 3), 6**-0.5))
    assert added["bias"].abs().max() < 1e-6


def layered(kind):
    torch.manual_seed(0)
    return {
        "convolution": lambda: (nn.Conv1d(1, 2, 2), samples(4, 1, 3)),
        "recurrent": lambda: (Last(nn.LSTM(3, 3, batch_first=True)), samples(4, 2, 3)),
        "attention": lambda: (
            Self(nn.MultiheadAttention(3, 1, batch_first=True)),
            samples(4, 2, 3),
        ),
        "norms": lambda: (nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3)), samples(4, 3)),
        "derived": lambda: (
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
            samples(4, 3),
        ),
    }[kind]()


class Last(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


class Self(Last):
    def forward(self, x):
        return self.inner(x, x, x)[0]


@pytest.mark.parametrize("strategy", ["ghost", "keep", "discard"])
@pytest.mark.parametrize("kind", ["convolution", "recurrent", "attention", "norms", "derived"])
def test_no_kind_of_layer_lets_it_through(kind, strategy):
    model, clean = layered(kind)
    model.double()
    x = clean.clone()
    x[1].fill_(float("nan"))
    found = quietgrad.clipped_sum(model, lambda: squares(model, x), strategy=strategy)
    expected = quietgrad.clipped_sum(model, lambda: squares(model, clean[[0, 2, 3]]))
    assert found.nonfinite == 1
    for name, total in found.grads.items():
        torch.testing.assert_close(total, expected.grads[name])


def test_a_sample_that_is_not_finite_hides_no_mixing():
    model = Net(lambda net, x: net.last(net.first(x) - net.first(x).mean(0)))
    with pytest.raises(quietgrad.QuietgradError):
        quietgrad.clipped_sum(model, lambda: squares(model, spoilt(samples(4), float("nan"))))
