"""Layers with a state or a life of their own: normed weights, checkpoints, quantization."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import quietgrad
from quietgrad.errors import SampleMixingError, UnsupportedOperationError
from refusals.helpers import (
    Net,
    assert_exact,
    assert_refused,
    attach,
    one_by_one,
    only_batch,
    samples,
    squares,
)

X = samples(5)

NORMED = {
    "spectral_norm": parametrizations.spectral_norm,
    "spectral_norm as a hook": nn.utils.spectral_norm,
    "weight_norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.parametrize("name", NORMED)
def test_normed_weights_are_exact(name):
    """Power iteration writes buffers in every training forward, from weights and not from data."""
    torch.manual_seed(0)
    model = nn.Sequential(NORMED[name](nn.Linear(3, 3)), nn.Linear(3, 2)).double()
    start = {key: value.clone() for key, value in model.state_dict().items()}

    def from_the_start(m, x):
        m.load_state_dict(start)
        return squares(m, x)

    expected = one_by_one(model, from_the_start, X)
    model.load_state_dict(start)
    found = quietgrad.per_sample_grads(model, lambda: squares(model, X))
    for parameter, gradient in expected.items():
        torch.testing.assert_close(found[parameter], gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NORMED)
def test_normed_weights_are_bounded(name):
    def sums(rows):
        torch.manual_seed(0)
        model = nn.Sequential(NORMED[name](nn.Linear(3, 3)), nn.Linear(3, 2)).double()
        return quietgrad.clipped_sum(model, lambda: squares(model, X[rows]))

    whole = sums([0, 1, 2, 3, 4])
    for left in range(5):
        rest = sums([i for i in range(5) if i != left])
        change = [(whole.grads[n] - rest.grads[n]).flatten() for n in whole.grads]
        assert torch.cat(change).norm() <= whole.sensitivity * (1 + 1e-9)


HOOKS = {
    "before the model": lambda m: m.register_forward_pre_hook(lambda _, x: (x[0] - x[0].mean(0),)),
    "behind the model": lambda m: m.register_forward_hook(lambda _, x, y: y - y.detach().mean(0)),
    "behind a layer": lambda m: m.first.register_forward_hook(lambda _, x, y: y - y.mean(0)),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", HOOKS)
def test_hooks_that_mix_samples_are_refused(name, when):
    """Registered before attaching or later."""
    model = Net(lambda net, x: net.last(net.first(x)))
    if when == "before":
        HOOKS[name](model)
    engine = attach(model, X)
    if when == "after":
        HOOKS[name](model)
    with pytest.raises(SampleMixingError):
        engine.backward(squares(model, *only_batch(engine)))


def test_a_functional_call_of_the_whole_model():
    model = Net(lambda net, x: net.last(net.first(x).tanh()))

    def losses(m, x):
        return torch.func.functional_call(m, dict(m.named_parameters()), (x,)).square().sum(1)

    assert_exact(model, losses, X)


class Dropping(nn.Module):
    """Dropout inside a checkpointed block: the recomputation must draw the same mask."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(3, 3).double(), nn.Linear(8, 2).double()
        self.block = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Tanh()).double()

    def forward(self, x):
        return self.head(checkpoint(self.block, self.stem(x), use_reentrant=False))


def test_dropout_in_a_checkpoint():
    model = Dropping()
    torch.manual_seed(3)
    found = quietgrad.per_sample_grads(model, lambda: squares(model, X))
    torch.manual_seed(3)
    squares(model, X).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name].sum(0), parameter.grad)


@pytest.mark.parametrize("reentrant", [True, False])
def test_batch_norm_in_a_checkpoint(reentrant):
    """Refused before its statistics have taken in anything, also in the pass without gradients."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.norm = nn.Linear(3, 3).double(), nn.BatchNorm1d(3).double()

        def forward(self, x):
            return checkpoint(self.norm, self.stem(x), use_reentrant=reentrant)

    assert_refused(Hidden(), squares, X, error=SampleMixingError, words=["'norm'", "GroupNorm"])


def test_observers_of_quantization_are_refused():
    """They keep the smallest and largest activation they have seen."""
    observer = torch.ao.quantization.FakeQuantize()
    model = nn.Sequential(nn.Linear(3, 3), observer, nn.Linear(3, 2))
    words = ["min_val", "raw data"]
    assert_refused(model, squares, X.float(), error=UnsupportedOperationError, words=words)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_model_has_nothing_to_train():
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with pytest.warns(DeprecationWarning, match="quantization"):
        model = torch.ao.quantization.quantize_dynamic(layers, {nn.Linear})
    with pytest.raises(ValueError, match="no trainable parameter"):
        quietgrad.clipped_sum(model, lambda: squares(model, X.float()))


def test_a_cache_of_the_last_batch_is_refused():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.last = nn.Linear(3, 2).double(), None

        def forward(self, x):
            before, self.last = self.last, x.detach().mean(0)
            return self.linear(x if before is None else x - before)

    error = UnsupportedOperationError
    assert_refused(Remembering(), squares, X, error=error, words=["attribute 'last'", "cache"])


def test_statistics_in_a_plain_attribute_are_refused():
    class Tracking(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mean = nn.Linear(3, 2).double(), torch.zeros(3).double()

        def forward(self, x):
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.linear(x - self.mean)

    with pytest.raises(UnsupportedOperationError, match="attribute 'mean'"):
        model = Tracking()
        quietgrad.clipped_sum(model, lambda: squares(model, X))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_by_offsets(mode):
    """By offsets, bags are rows of one long list of ids."""

    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.table = nn.EmbeddingBag(9, 3, mode=mode).double()

        def forward(self, ids):
            offsets = torch.arange(len(ids)) * ids.shape[1]
            return F.tanh(self.table(ids.flatten(), offsets))

    ids = torch.tensor([[0, 1, 0], [2, 2, 2], [8, 1, 8], [5, 5, 1]])
    assert_exact(Bags(), squares, ids)
