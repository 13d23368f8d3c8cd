"""Kernels round otherwise for an odd number of samples: a slope may change, without mixing."""

import pytest
import torch
from torch import nn

from quietgrad.errors import SampleMixingError

from .test_large_batches import train

BATCH = 16


class _Rounded(torch.autograd.Function):
    """The values, moved by less than rounding, the other way for odd numbers of samples."""

    @staticmethod
    def forward(ctx, values):
        return values + 1e-9 * (-1 if len(values) % 2 else 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


class AtAKink(nn.Module):
    """Some samples have hidden values that are nothing but rounding, before a ReLU."""

    def __init__(self, share):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.share = nn.Linear(4, 4), nn.Linear(4, 2), share
        with torch.no_grad():
            self.first.bias.zero_()

    def forward(self, x):
        marked = (x[:, :1] > self.share).float()  # decided by the sample alone
        hidden = self.first(x)
        return self.last(torch.relu(_Rounded.apply(hidden - hidden.detach() * marked)))


@pytest.mark.parametrize("batch", [16, 18, 30])
@pytest.mark.parametrize("share", [1.2, 2.0])
def test_a_sample_at_a_kink_is_not_refused(share, batch):
    train(AtAKink(share), batch=batch)


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
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CHANGES)
def test_gradients_that_do_depend_on_others_are_refused(name, seed):
    with pytest.raises(SampleMixingError):
        train(Changed(CHANGES[name]), batch=BATCH)
