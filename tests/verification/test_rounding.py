"""Kernels round otherwise for an odd number of samples: a slope may change, without mixing."""

import pytest
import torch
from torch import nn

from quietgrad.capture import independence
from quietgrad.errors import SampleMixingError

from .test_large_batches import train

BATCH = 19


class _Rounded(torch.autograd.Function):
    """The values, moved by about their rounding error, the other way for odd numbers of samples."""

    @staticmethod
    def forward(ctx, values):
        return values + 3e-8 * (-1 if len(values) % 2 else 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


class AtAKink(nn.Module):
    """One sample of the data has hidden values that are nothing but rounding, before a ReLU."""

    def __init__(self, batch, sample, rate=0.0):
        super().__init__()
        torch.manual_seed(1)
        x = torch.randn(batch, 4)[sample]  # as in `train`
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.dropout = nn.Dropout(rate)
        with torch.no_grad():
            self.first.bias[0] = -self.first.weight[0] @ x

    def forward(self, x):
        return self.last(self.dropout(torch.relu(_Rounded.apply(self.first(x)))))


@pytest.mark.parametrize("batch", [14, 18, 30, 38])
@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_sample_at_a_kink_is_not_refused(batch, rate, monkeypatch):
    monkeypatch.setattr(independence, "_TREMBLES", 100)  # that none of them shows it is by chance
    for sample in range(0, batch, 5):
        train(AtAKink(batch, sample, rate), batch=batch)


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values, change):
        ctx.change = change
        return values.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.change(grad), None


class Changed(nn.Module):
    """Gradients of hidden values are changed on their way."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.change = nn.Linear(4, 8), nn.Linear(8, 2), change

    def forward(self, x):
        return self.last(_Backward.apply(torch.relu(self.first(x)), self.change))


def at(place, factor):
    def change(grad):
        grad = grad.clone()
        if -len(grad) <= place < len(grad):
            grad[place] = grad[place] * factor(len(grad))
        return grad

    return change


CHANGES = {
    "all by their number": lambda grad: grad / len(grad),
    "the first by the number": at(0, lambda count: count),
    "the last by the number": at(-1, lambda count: count),
    "the first": at(0, lambda count: 2),
    "one place": at(9, lambda count: 2),
    "the last place of a whole batch": at(BATCH - 1, lambda count: 2),
    "all, unless the batch is whole": lambda grad: grad * (1 + (len(grad) < BATCH)),
    "the next sample's": lambda grad: grad + grad.roll(1, 0),
    "the largest": lambda grad: grad / grad.abs().max(),
    "by parity": lambda grad: grad * (1 if len(grad) % 2 else -1),
    "by four": lambda grad: grad * (1 + len(grad) % 4),
    "the last of an odd number": lambda grad: at(-1, lambda count: 1 + count % 2)(grad),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CHANGES)
def test_gradients_that_do_depend_on_others_are_refused(name, seed):
    with pytest.raises(SampleMixingError):
        train(Changed(CHANGES[name]), batch=BATCH)


class Gated(nn.Module):
    """A closed gate: outputs do not show by what its gradient is multiplied."""

    def __init__(self, size_of):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.gate, self.size_of = nn.Parameter(torch.zeros(8)), size_of

    def forward(self, x):
        h = torch.relu(self.first(x))
        return self.last(h + self.gate * h * self.size_of(len(x)))


SIZES = {
    "parity": (lambda count: 30.0 if count % 2 else -30.0),
    "four": (lambda count: float(count % 4)),
    "many": (lambda count: float(count >= 14)),
}


@pytest.mark.parametrize("batch", [18, 19, 22])  # half of them is odd, or even
@pytest.mark.parametrize("name", SIZES)
def test_a_closed_gate_that_depends_on_the_number_is_refused(name, batch):
    refused = 0
    for _ in range(4):
        try:
            train(Gated(SIZES[name]), batch=batch)
        except SampleMixingError:
            refused += 1
    assert refused  # halves of an odd number may be even
