"""Traps that run silently in other libraries, one by one: here each is exact or refused.

Those about losses, batch statistics, empty batches, leftovers, the optimizer and non-finite samples
have files of their own; what is left is here.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad
from quietgrad.errors import LossError
from quietgrad.grouping import AllLayer

from .helpers import Net, assert_exact, assert_refused, attach, samples, squares

X = samples(5)


def layers(net, x):
    return net.last(net.first(x))


def moved_by(model, losses, count, **options):
    """The largest change of the sum when one sample is left out, and the stated sensitivity."""
    whole = quietgrad.clipped_sum(model, lambda: losses(range(count)), **options)
    changes = []
    for left in range(count):
        rest = [i for i in range(count) if i != left]
        part = quietgrad.clipped_sum(model, lambda rest=rest: losses(rest), **options)
        change = [(whole.grads[n] - part.grads[n]).flatten() for n in whole.grads]
        changes.append(torch.cat(change).norm().item())
    return max(changes), whole.sensitivity


@pytest.mark.parametrize("radius", [0.1, 1.0, 30.0])
def test_there_is_one_radius(radius):
    """Clip and noise both follow it, and a second one is refused."""
    model = Net(layers)
    change, sensitivity = moved_by(model, lambda i: squares(model, X[list(i)]), 5, radius=radius)
    assert change <= sensitivity * (1 + 1e-9)
    assert sensitivity == pytest.approx(radius)
    engine = attach(model, X, radius=radius)
    assert engine.sensitivity == pytest.approx(radius)
    engine.detach()
    with pytest.raises(ValueError, match="twice"):
        attach(model, X, radius=radius, grouping=AllLayer(radius=1.0))


def test_tokens_folded_into_the_batch_stay_their_samples():
    """The unit of privacy is the sample, not the token."""
    model = Net(lambda net, x: layers(net, x.flatten(0, 1)).unflatten(0, x.shape[:2]))
    x = samples(4, 6, 3)
    assert_exact(model, squares, x)
    change, sensitivity = moved_by(model, lambda i: squares(model, x[list(i)]), 4)
    assert change <= sensitivity * (1 + 1e-9)
    tokens = lambda m, x: m(x).square().sum(-1).flatten()  # noqa: E731
    assert_refused(Net(layers), tokens, x, error=LossError, words=["24 losses", "4 samples"])


def test_reused_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(9, 3), nn.Linear(3, 9, bias=False)
            self.head.weight = self.embed.weight
            self.double()

        def forward(self, ids):
            hidden = self.embed(ids)
            return self.head(hidden) + F.linear(hidden, self.embed.weight).tanh()

    assert_exact(Tied(), squares, torch.tensor([[0, 1], [2, 2], [8, 1], [5, 5]]))


def test_padding_rows():
    model = nn.Sequential(nn.Embedding(9, 3, padding_idx=1), nn.Linear(3, 2)).double()
    nn.init.normal_(model[0].weight)
    assert_exact(model, squares, torch.tensor([[0, 1], [1, 1], [8, 1], [5, 5]]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_duplicates_in_bags(mode):
    model = nn.Sequential(nn.EmbeddingBag(9, 3, mode=mode), nn.Linear(3, 2)).double()
    assert_exact(model, squares, torch.tensor([[0, 1, 0], [2, 2, 2], [8, 1, 8], [5, 5, 1]]))


def test_ids_beyond_what_half_precision_can_count():
    """In bfloat16 the ids 256 and 257 are the same number."""
    model = nn.Sequential(nn.Embedding(600, 2), nn.Linear(2, 2)).to(torch.bfloat16)
    ids = torch.tensor([[256], [257], [512], [513]])
    found = quietgrad.per_sample_grads(model, lambda: squares(model, ids))["0.weight"]
    for row, (i,) in zip(found, ids.tolist(), strict=True):
        assert row[i].any()
        assert not torch.cat([row[:i], row[i + 1 :]]).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_and_sums_of_half_precision_models_are_taken_in_full(dtype):
    model = nn.Linear(300, 40).to(dtype)
    x = (100 * samples(4, 300)).to(dtype)
    found = quietgrad.clipped_sum(model, lambda: model(x).sum(1))
    assert found.norms.dtype == torch.float32
    assert found.norms.isfinite().all(), "squares above 65504 would overflow in half precision"
    exact = quietgrad.per_sample_grads(model, lambda: model(x).sum(1))
    joined = torch.cat([g.double().flatten(1) for g in exact.values()], 1)
    torch.testing.assert_close(found.norms[:, 0].double(), joined.norm(dim=1), rtol=1e-4, atol=0)
    clipped = joined / (joined.norm(dim=1, keepdim=True) + 0.01)
    total = torch.cat([found.grads[n].double().flatten() for n in exact])
    torch.testing.assert_close(total, clipped.sum(0), rtol=1e-3, atol=1e-4)


def test_autocast_computes_norms_in_full():
    model = nn.Linear(300, 40)
    x = 100 * samples(4, 300).float()

    def losses():
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().sum(1)

    found = quietgrad.clipped_sum(model, losses)
    assert found.norms.dtype == torch.float32
    assert (found.weights * found.norms <= 1).all()


def test_a_sample_next_to_underflow_does_not_slip_through():
    """Squares of 1e-23 are zero in single precision; times an input of 1e19 they are none."""
    model = nn.Linear(1, 4096, bias=False)
    x = torch.full((1, 1), 1.8e19)
    found = quietgrad.clipped_sum(model, lambda: (2.6e-23 * model(x)).sum(1))
    length = found.grads["weight"].double().norm()
    assert length <= found.sensitivity * (1 + 1e-4)


def test_positions_that_nearly_cancel_do_not_slip_through():
    """The norm of their sum from a Gram matrix would be rounding error alone."""
    model = nn.Linear(64, 64, bias=False)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 1, 64, generator=generator).expand(-1, 2, -1).clone()
    x[:, 1] += 1e-4 * torch.randn(3, 64, generator=generator)
    signs = torch.tensor([1e4, -1e4]).view(1, 2, 1)
    for strategy in ("ghost", "keep", "discard", "auto"):
        found = quietgrad.clipped_sum(
            model, lambda: (signs * model(x)).sum((1, 2)), strategy=strategy, clipping="auto-v"
        )
        one = quietgrad.per_sample_grads(model, lambda: (signs * model(x)).sum((1, 2)))["weight"]
        lengths = one.double().flatten(1).norm(dim=1) * found.weights[:, 0].double()
        assert (lengths <= found.sensitivity * 1.01).all(), strategy


def test_every_sample_counts_once_whatever_the_physical_batch():
    model = Net(layers)
    engine = attach(model, X, physical_batch_size=2)
    seen = []
    for batch in engine.batches():
        for (x,) in batch:
            seen.append(x)
            engine.backward(squares(model, x))
        engine.step()
    assert torch.equal(torch.cat(seen), X)


def test_epsilon_before_the_first_step_is_zero_and_not_an_error():
    engine = attach(Net(layers), X)
    assert engine.epsilon() == 0.0
