"""Batch normalization beside public features, against a loop that gives a sample its own batch."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import SampleMixingError, UnsupportedOperationError

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
    publicly.restore(model)
    assert torch.equal(model.eval()(X), normalized().eval()(X))
    model.train()(torch.cat([X, X[:1]]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rows", [COUNT, 7, 2 * (1 + P)])
def test_the_model_is_not_called_directly(rows, training):
    """In training, rows would be taken for public features; in evaluation, statistics are none."""
    model = normalized()
    qg.BatchClipping(PUBLIC, p=P).outputs(model, X)
    model.train(training)
    with pytest.raises(SampleMixingError, match=r"'1'.*directly.*losses.*predict"):
        model(X[:1].expand(rows, -1, -1, -1))


def test_an_engine_refuses_a_direct_call_with_the_same_words():
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    publicly.outputs(model, X)
    engine = attach(model, TensorDataset(X, Y))
    for batch in engine.batches():
        for x, y in batch:
            with pytest.raises(SampleMixingError, match=r"directly.*BatchClipping\.losses"):
                engine.backward(lambda x=x, y=y: F.cross_entropy(model(x), y, reduction="none"))
            break
        engine.discard_batch()
        break


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = normalized()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_what_checkpointing_runs_again_is_no_direct_call():
    plain, model = normalized(), Checkpointed()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    expected, found = (
        qg.clipped_sum(each, lambda m=each: publicly.losses(m, X, Y, F.cross_entropy))
        for each in (plain, model)
    )
    for name, total in expected.grads.items():
        torch.testing.assert_close(found.grads[f"inner.{name}"], total, rtol=1e-9, atol=1e-11)


def test_copies_of_the_model_run_through_the_same_features():
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    expected = publicly.outputs(model, X)
    torch.testing.assert_close(publicly.outputs(copy.deepcopy(model), X), expected)


def test_prediction_takes_a_few_samples_at_a_time(monkeypatch):
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    expected = publicly.predict(model, X, draws=1)
    monkeypatch.setattr("quietgrad.methods.batch_clipping._ROWS_AT_A_TIME", 2 * (1 + P) + 1)
    rows = []
    model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    assert torch.equal(publicly.predict(model, X, draws=1), expected)
    assert rows == [2 * (1 + P)] * (COUNT // 2)
    assert publicly.predict(model, X[:0]).shape == (0,)


def test_maps_may_lie_in_memory_in_any_way():
    model = normalized()
    publicly = qg.BatchClipping(PUBLIC, p=P)
    expected = publicly.outputs(model, X)
    model.to(memory_format=torch.channels_last)
    channels_last = X.to(memory_format=torch.channels_last)
    torch.testing.assert_close(publicly.outputs(model, channels_last), expected)


def test_public_features_are_copied_without_gradients():
    public = PUBLIC.clone().requires_grad_()
    publicly = qg.BatchClipping(public, p=P)
    publicly.losses(normalized(), X, Y, F.cross_entropy).sum().backward()
    assert public.grad is None


def test_bytes_are_refused():
    with pytest.raises(TypeError, match="255"):
        qg.BatchClipping(torch.zeros(5, 1, 6, 6, dtype=torch.uint8), p=3)
    publicly = qg.BatchClipping(PUBLIC, p=P)
    with pytest.raises(TypeError, match="255"):
        publicly.outputs(normalized(), X.byte())
    with pytest.raises(TypeError, match="same scale"):
        publicly.outputs(normalized(), X.long())


def test_public_features_are_finite():
    with pytest.raises(ValueError, match="not finite"):
        qg.BatchClipping(torch.full((5, 3), torch.nan), p=3)


def test_without_batch_normalization_there_is_nothing_to_do():
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double()
    with pytest.raises(UnsupportedOperationError, match="no batch normalization"):
        qg.BatchClipping(PUBLIC, p=1).outputs(model, X)


def test_loss_modules_are_refused():
    with pytest.raises(TypeError, match=r"CrossEntropyLoss.*F\.cross_entropy"):
        qg.BatchClipping(PUBLIC, p=1).losses(normalized(), X, Y, nn.CrossEntropyLoss())


def test_it_says_what_it_is():
    assert repr(qg.BatchClipping(PUBLIC, p=2)) == (
        "BatchClipping(3 public features of shape (1, 6, 6), p=2)"
    )


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
        (lambda: qg.BatchClipping(PUBLIC, p=1, seed="x"), TypeError, "seed"),
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


class Doubled(nn.BatchNorm2d):
    def forward(self, inputs):
        return 2 * super().forward(inputs)


def test_a_batch_norm_of_ones_own_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), Doubled(2)).double()
    with pytest.raises(UnsupportedOperationError, match=r"'1'.*Doubled"):
        qg.BatchClipping(PUBLIC, p=1).outputs(model, X)


def test_other_batch_norms_are_refused():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.SyncBatchNorm(2)).double()
    with pytest.raises(UnsupportedOperationError, match=r"'1'.*SyncBatchNorm"):
        qg.BatchClipping(PUBLIC, p=1).outputs(model, X)
