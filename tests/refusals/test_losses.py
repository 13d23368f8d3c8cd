"""What is passed to backward: one differentiable loss per sample, or a refusal that says so."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad
from quietgrad.errors import LossError, SampleMixingError

from .helpers import Net, assert_refused, attach, only_batch, samples, squares, state

X = samples(6)
Y = torch.arange(6) % 2


def classifier():
    return Net(lambda net, x: net.last(net.first(x)))


WRONG = {
    "scalar": (lambda m, x, y: F.cross_entropy(m(x), y), ["scalar", "reduction='none'"]),
    "a column": (
        lambda m, x, y: F.mse_loss(m(x)[:, :1], y[:, None].double(), reduction="none"),
        ["(6, 1)", "flatten(1).mean(1)"],
    ),
    "several per sample": (lambda m, x, y: m(x).square(), ["(6, 2)", "one loss per sample"]),
    "too few": (lambda m, x, y: squares(m, x)[:4], ["4 losses", "6 samples"]),
    "too many": (lambda m, x, y: squares(m, x).repeat(2), ["12 losses", "6 samples"]),
    "one for all": (lambda m, x, y: squares(m, x).mean()[None], ["1 losses", "6 samples"]),
    "none": (lambda m, x, y: squares(m, x)[:0], ["0 losses"]),
    "tokens as samples": (
        lambda m, x, y: m(x).square().flatten(),
        ["12 losses", "6 samples"],
    ),
    "detached": (lambda m, x, y: squares(m, x).detach(), ["trainable parameter", "detached"]),
    "a number": (lambda m, x, y: squares(m, x).sum().item(), ["float", "1-D tensor"]),
    "a list": (lambda m, x, y: list(squares(m, x)), ["list", "1-D tensor"]),
    "nothing": (lambda m, x, y: None, ["NoneType"]),
    "an output object": (lambda m, x, y: SimpleNamespace(loss=1), ["SimpleNamespace"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_anything_but_one_loss_per_sample_is_refused(name):
    losses, words = WRONG[name]
    assert_refused(classifier(), losses, X, Y, error=LossError, words=words)


def test_no_grad_losses_are_refused():
    def losses(model, x, y):
        with torch.no_grad():
            return squares(model, x)

    assert_refused(classifier(), losses, X, Y, error=LossError, words=["no_grad"])


def test_a_closure_is_checked_like_its_result():
    def losses(model, x, y):
        return lambda: squares(model, x).mean()

    assert_refused(classifier(), losses, X, Y, error=LossError, words=["scalar"])


def test_the_functional_layer_checks_alike():
    model = classifier()
    for wrong in (lambda: squares(model, X).sum(), lambda: model(X), lambda: [squares(model, X)]):
        with pytest.raises(LossError):
            quietgrad.clipped_sum(model, wrong)


class LanguageModel(nn.Module):
    """Returns what Hugging Face models return: a loss averaged over the tokens of the batch."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, ids, labels):
        logits = self.head(self.embed(ids))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return SimpleNamespace(loss=loss, logits=logits)


def test_a_mean_over_the_tokens_of_the_batch_is_refused():
    """Its divisor counts the tokens of all samples: repeating it B times does not help."""
    ids = torch.randint(9, (6, 5), generator=torch.Generator().manual_seed(0))
    labels = ids.masked_fill(ids > 6, -100)
    model = LanguageModel()
    words = ["scalar", "reduction='none'"]
    assert_refused(model, lambda m, x, y: m(x, y).loss, ids, labels, error=LossError, words=words)
    repeated = lambda m, x, y: m(x, y).loss.expand(len(x))  # noqa: E731
    assert_refused(model, repeated, ids, labels, error=SampleMixingError)


MIXING = {
    "the mean, repeated": lambda own, h: own.mean().expand(len(own)),
    "divided by the sum": lambda own, h: own / own.sum(),
    "centred": lambda own, h: own - own.mean(),
    "softmax over samples": lambda own, h: own.softmax(0) * own,
    "cumulative": lambda own, h: own.cumsum(0),
    "neighbours": lambda own, h: own + own.roll(1),
    "contrastive": lambda own, h: F.cross_entropy(h @ h.T, torch.arange(len(h)), reduction="none"),
    "triplet": lambda own, h: F.triplet_margin_loss(
        h, h.roll(1, 0), h.roll(2, 0), reduction="none"
    ),
    "pairwise distances": lambda own, h: (
        torch.cdist(h, h.detach() + 1).sum(1) + torch.cdist(h, h).mean(1)
    ),
    "decorrelation": lambda own, h: own + (h.T @ h).square().sum() / len(h),
    "weighted by batch variance": lambda own, h: own * h.var(0).sum(),
    "sorted and paired": lambda own, h: own * own.sort().values,
    "maximum": lambda own, h: own + own.max(),
    "rows swapped": lambda own, h: own + own.flip(0),
    "one other sample": lambda own, h: torch.cat([own[:1] + own[-1:], own[1:]]),
}


@pytest.mark.parametrize("name", MIXING)
def test_losses_that_mix_samples_are_refused(name):
    """Whatever the random split of the probe: a refusal that comes now and then is none."""

    def losses(model, x, y):
        hidden = model(x)
        return MIXING[name](F.cross_entropy(hidden, y, reduction="none"), hidden)

    for _ in range(8):
        words = ["samples", "mixed", "last", "loss"]
        assert_refused(classifier(), losses, X, Y, error=SampleMixingError, words=words)


def test_losses_may_be_weighted_and_masked_per_sample():
    """A control: these look at one sample each and are no mixing."""
    model = classifier()
    engine = attach(model, X, Y)
    x, y = only_batch(engine)
    weights = torch.linspace(0, 2, len(x))
    engine.backward(weights * F.cross_entropy(model(x), y, reduction="none") * (y == 1))
    before = state(model)
    engine.step()
    assert not torch.equal(model.state_dict()["last.weight"], before["last.weight"])


def test_class_weights_work_per_sample_and_not_as_a_mean_over_the_batch():
    weight = torch.tensor([1.0, 5.0], dtype=torch.float64)
    mean = lambda m, x, y: F.cross_entropy(m(x), y, weight=weight)  # noqa: E731
    assert_refused(classifier(), mean, X, Y, error=LossError)
    own = lambda m, x, y: F.cross_entropy(m(x), y, weight=weight, reduction="none")  # noqa: E731
    engine = attach(model := classifier(), X, Y)
    engine.backward(own(model, *only_batch(engine)))


def test_a_batch_of_no_samples_has_no_gradients():
    model = classifier()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    found = quietgrad.per_sample_grads(model, lambda: squares(model, X[:0]))
    clipped = quietgrad.clipped_sum(model, lambda: squares(model, X[:0]), grouping="layer-wise")
    for (name, parameter), old in zip(model.named_parameters(), before, strict=True):
        assert found[name].shape == (0, *parameter.shape)
        assert torch.equal(clipped.grads[name], torch.zeros_like(parameter))
        assert torch.equal(parameter, old)
        assert parameter.grad is None
    assert clipped.norms.shape == clipped.weights.shape == (0, len(clipped.groups))
    assert clipped.nonfinite == 0
    assert clipped.sensitivity > 0
