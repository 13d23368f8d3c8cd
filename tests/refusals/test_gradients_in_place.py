"""A gradient that is changed after it was measured would be summed beyond its bound."""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.errors import UnsupportedOperationError

B = 6


class Meddling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(100)


class Branches(nn.Module):
    """Both branches get the same gradient; the one made first is back-propagated last."""

    def __init__(self, meddle):
        super().__init__()
        self.lin, self.head, self.meddle = nn.Linear(4, 4), nn.Linear(4, 4), meddle

    def forward(self, x):
        beside = self.meddle(self.head(x))
        return (self.lin(x) + beside).square().sum(1)


def by_hook(change):
    def meddle(tensor):
        if tensor.requires_grad:
            tensor.register_hook(change)
        return tensor

    return meddle


@pytest.mark.parametrize(
    "meddle",
    [
        Meddling.apply,
        by_hook(lambda grad: grad.mul_(100)),
        by_hook(lambda grad: grad.clamp_(-1e-3, 1e-3)),
        by_hook(lambda grad: grad.data.mul_(100)),
        by_hook(lambda grad: torch.from_numpy(grad.detach().numpy()).mul_(100)),
    ],
    ids=["function", "hook", "clamping hook", "hook by data", "hook by numpy"],
)
def test_refused_by_name(meddle):
    torch.manual_seed(0)
    model, x = Branches(meddle).double(), torch.randn(B, 4).double()
    with pytest.raises(UnsupportedOperationError, match="in place"):
        qg.clipped_sum(model, lambda: model(x))


def test_also_in_micro_batches_of_one_sample():
    """Which are not probed."""
    torch.manual_seed(0)
    model = Branches(by_hook(lambda grad: grad.data.mul_(100)))
    engine = qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        torch.utils.data.TensorDataset(torch.randn(B, 4)),
        batch_size=B,
        physical_batch_size=1,
        sampling="full-batch",
        adjacency="zero-out-one",
        noise_multiplier=1.0,
        delta=1e-3,
    )
    with pytest.raises(UnsupportedOperationError, match="in place"):
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(model(x))


def test_the_engine_refuses_and_releases_nothing():
    torch.manual_seed(0)
    model = Branches(Meddling.apply)
    before = [p.detach().clone() for p in model.parameters()]
    engine = qg.PrivacyEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        torch.utils.data.TensorDataset(torch.randn(B, 4)),
        batch_size=B,
        noise_multiplier=1.0,
        delta=1e-3,
    )
    with pytest.raises(UnsupportedOperationError, match="in place"):
        for batch in engine.batches():
            for (x,) in batch:
                engine.backward(model(x))
    assert all(map(torch.equal, before, model.parameters()))
    assert not engine.ledger.events
