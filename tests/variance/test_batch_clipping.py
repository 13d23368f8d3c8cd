"""Batch normalization beside public features, against a loop that gives a sample its own batch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import LossError, SampleMixingError, UnsupportedOperationError

from .helpers import CLASSES, COUNT, attach, clipped, weights_of

P = 3


def normalized() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2),
        nn.BatchNorm2d(4, affine=False),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.BatchNorm1d(5),
        nn.Linear(5, CLASSES),
    ).double()


X = torch.randn(COUNT, 1, 6, 6, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(COUNT) % CLASSES
PUBLIC = torch.randn(P, 1, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def truth(model):
    """Gradients by torch's own batch normalization, of a sample and all public features."""
    twin = copy.deepcopy(model)
    rows = []
    for x, y in zip(X, Y, strict=True):
        outputs = twin(torch.cat([x[None], PUBLIC]))
        grads = torch.autograd.grad(F.cross_entropy(outputs[:1], y[None]), list(twin.parameters()))
        rows.append(grads)
    names = [name for name, _ in twin.named_parameters()]
    return {
        n: torch.stack(column) for n, column in zip(names, zip(*rows, strict=True), strict=True)
    }


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise", "param-wise"])
def test_sums_are_those_of_a_loop(grouping):
    model = normalized()
    expected = truth(model)
    publicly = qg.BatchClipping(PUBLIC, p=P)
    found = qg.clipped_sum(
        model, lambda: publicly.losses(model, X, Y, F.cross_entropy), grouping=grouping
    )
    for key, total in clipped(expected, found.groups, "auto-s").items():
        torch.testing.assert_close(found.grads[key], total, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("left_out", range(COUNT))
def test_leaving_a_sample_out_moves_the_sum_by_the_sensitivity_at_most(left_out):
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    rest = [i for i in range(COUNT) if i != left_out]
    whole, part = (
        qg.clipped_sum(model, lambda i=i: publicly.losses(model, X[i], Y[i], F.cross_entropy))
        for i in (range(COUNT), rest)
    )
    moved = torch.cat([(whole.grads[n] - part.grads[n]).flatten() for n in whole.grads]).norm()
    assert moved <= whole.sensitivity * (1 + 1e-9)


def test_training_never_touches_running_statistics():
    model = normalized()
    buffers = copy.deepcopy(dict(model.named_buffers()))
    publicly = qg.BatchClipping(torch.cat([PUBLIC, -PUBLIC]), p=P)
    engine = attach(model, TensorDataset(X, Y))
    before = weights_of(model)
    for _ in range(3):
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(lambda x=x, y=y: publicly.losses(model, x, y, F.cross_entropy))
            engine.step()
    assert any(not torch.equal(before[n], now) for n, now in weights_of(model).items())
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name])
    labels = publicly.predict(model, X, draws=5)
    assert labels.shape == (COUNT,)
    assert model.training
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())


def test_prediction_is_the_majority():
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P, seed=0)
    model[1].eval()
    expected = torch.stack([model_outputs(model, x).argmax(-1)[0] for x in X])
    assert torch.equal(publicly.predict(model, X, draws=1), expected)
    assert not model[1].training
    assert model[4].training


def model_outputs(model, x):
    twin = copy.deepcopy(model).train()
    return twin(torch.cat([x[None], PUBLIC]))


def test_the_model_can_be_had_back():
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    publicly.outputs(model, X)
    expected = normalized().eval()(X)
    assert torch.equal(model.eval()(X), expected)  # in evaluation, it is as it was
    model.train()
    with pytest.raises(LossError, match=r"7 rows.*BatchClipping.losses"):
        model(torch.cat([X, X[:1]]))
    publicly.restore(model)
    model(torch.cat([X, X[:1]]))


def test_without_public_features_it_is_refused():
    model = normalized()
    with pytest.raises(SampleMixingError, match="BatchClipping"):
        qg.clipped_sum(model, lambda: F.cross_entropy(model(X), Y, reduction="none"))


def test_a_direct_call_mixes_and_is_refused():
    model = normalized()
    qg.BatchClipping(PUBLIC, p=1).outputs(model, X)
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: F.cross_entropy(model(X), Y, reduction="none"))


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        (lambda: qg.BatchClipping(PUBLIC, p=0), ValueError, "p="),
        (lambda: qg.BatchClipping(PUBLIC, p=4), ValueError, "public features"),
        (lambda: qg.BatchClipping([1, 2], p=1), TypeError, "public_features"),
        (
            lambda: qg.BatchClipping(PUBLIC[..., 1:], p=1).outputs(normalized(), X),
            ValueError,
            "same",
        ),
        (lambda: qg.BatchClipping(PUBLIC).predict(normalized(), X, draws=0), ValueError, "p="),
    ],
)
def test_bad_input(wrong, error, named):
    with pytest.raises(error, match=named):
        wrong()


def test_other_batch_norms_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SyncBatchNorm(2)).double()
    with pytest.raises(UnsupportedOperationError, match=r"'1'.*SyncBatchNorm"):
        qg.BatchClipping(PUBLIC, p=1).outputs(model, X)
