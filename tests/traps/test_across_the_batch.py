"""Models that rank, count, route, pack, pad or mix over the batch: none gets through."""

import pytest
import torch

from quietgrad.errors import SampleMixingError
from refusals.helpers import Net, assert_exact, assert_refused, samples, squares

from .helpers import moved

X = samples(5)


def between(mix):
    return lambda net, x: net.last(mix(x, net.first(x)))


def within_capacity(x, h):
    """The first two samples of each expert; later ones are dropped."""
    expert = x[:, 0] > 0
    ahead = torch.stack([(expert[:i] == expert[i]).sum() for i in range(len(x))])
    return h * (ahead < 2)[:, None]


FORWARDS = {
    "top-k of the batch": between(lambda x, h: h * (x >= x.topk(2, 0).values[-1])),
    "numbered by unique values": between(
        lambda x, h: h * x[:, 0].round().unique(return_inverse=True)[1][:, None]
    ),
    "sorted by another feature": between(lambda x, h: h[x[:, 0].argsort()]),
    "mixup": lambda net, x: net.last(net.first(0.7 * x + 0.3 * x[torch.randperm(len(x))])),
    "cutmix": between(lambda x, h: torch.cat([h[:, :1], h.roll(1, 0)[:, 1:]], 1)),
    "experts of limited capacity": between(within_capacity),
    "a branch on the batch": lambda net, x: net.last(net.first(x) if x.mean() > 0 else 2 * x),
    "load balancing added to the output": lambda net, x: (
        net.last(x) + net.first(x).softmax(1).mean(0).square().sum()
    ),
    "a scale from the batch": lambda net, x: net.last(net.first(x)) * x.abs().max(),
    "a scale from the batch, detached": lambda net, x: (
        net.last(net.first(x)) * net.first(x).detach().std()
    ),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_refused(name):
    for _ in range(4):  # probes are random: a refusal that comes now and then is none
        assert_refused(Net(FORWARDS[name]), squares, X, error=SampleMixingError)


def padded():
    """Five sequences of lengths 1, 2, 3, 4 and 2, padded with zeros."""
    x = samples(5, 4, 3)
    for row, length in enumerate([1, 2, 3, 4, 2]):
        x[row, length:] = 0
    return x


def is_token(x):
    return x.any(-1)


def cut_to_the_longest(net, x):
    length = int(is_token(x).sum(1).max())
    return net.last(net.first(x[:, :length]).mean(1))


def packed(net, x, across):
    tokens = is_token(x)
    owner = torch.arange(len(x))[:, None].expand(tokens.shape)[tokens]
    hidden = net.first(x[tokens])
    hidden = hidden.cumsum(0) if across else hidden
    return net.last(hidden.new_zeros(len(x), 3).index_add(0, owner, hidden))


SEQUENCES = {
    "cut to the longest of the batch": cut_to_the_longest,
    "packed into one sequence that runs through": lambda net, x: packed(net, x, across=True),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_are_refused(name):
    assert_refused(Net(SEQUENCES[name]), squares, padded(), error=SampleMixingError)


def test_packed_tokens_are_exact():
    """They are no mixing: each row has its owner."""
    assert_exact(Net(lambda net, x: packed(net, x, across=False)), squares, padded())


def test_rows_split_by_a_mask_are_exact():
    def forward(net, x):
        first = x[:, 0] > 0
        output = x.new_zeros(len(x), 2)
        output[first] = net.last(x[first])
        output[~first] = net.last(2 * x[~first])
        return output

    assert_exact(Net(forward), squares, X)


def test_padding_with_a_mask_is_exact():
    def forward(net, x):
        tokens = is_token(x)[..., None]
        return net.last((net.first(x) * tokens).sum(1) / tokens.sum(1))

    assert_exact(Net(forward), squares, padded())
    assert moved(Net(forward), squares, padded()) <= 1 + 1e-9


def test_a_dropout_mask_that_all_samples_share_is_bounded():
    """Random, but not of the data: it mixes nothing."""
    model = Net(lambda net, x: net.last(net.first(x) * (torch.rand(3) > 0.4).double()))
    assert moved(model, squares, X) <= 1 + 1e-9
