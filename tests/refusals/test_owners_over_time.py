"""Rows whose owners are others in every step: routed, masked, packed; compared step by step."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import quietgrad as qg
from quietgrad.errors import SampleMixingError

from .helpers import FEATURES, Net, assert_exact, assert_exact_steps, samples, squares


def is_token(x):
    """Another number of positions for each sample; none for some."""
    lengths = (x[:, 0, 0].abs() * 100).long() % (x.shape[1] + 1)
    return torch.arange(x.shape[1]) < lengths[:, None]


def by_mask(net, x):
    mask = is_token(x)
    out = x.new_zeros(*x.shape[:2], 2)
    out[mask] = net.last(net.first(x[mask]).tanh())
    return out.sum(1)


def by_sizes(net, x):
    """Joined by lengths that are numbers of Python; nothing is indexed."""
    sizes = is_token(x).sum(1).tolist()
    rows = torch.cat([each[:size] for each, size in zip(x, sizes, strict=True)])
    parts = net.first(rows).tanh().split(sizes)
    return net.last(torch.stack([part.sum(0) for part in parts]))


def by_slices(net, x):
    sizes = is_token(x).sum(1).tolist()
    rows = net.first(torch.cat([each[:size] for each, size in zip(x, sizes, strict=True)])).tanh()
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    starts = [0, *ends[:-1]]
    return net.last(torch.stack([rows[a:b].sum(0) for a, b in zip(starts, ends, strict=True)]))


def by_routing(net, x):
    tokens = x.flatten(0, 1)
    gate = net.first(tokens)
    chosen, out = gate.argmax(-1), x.new_zeros(len(tokens), 2)
    for expert in range(gate.shape[-1]):
        rows = (chosen == expert).nonzero().flatten()
        done = net.last(gate[rows] * (expert + 1)) * gate[rows].softmax(-1)[:, expert, None]
        out = out.index_add(0, rows, done)
    return out.view(*x.shape[:2], 2).sum(1)


def by_sorting(net, x):
    order = x[:, 0, 0].argsort()
    return net.last(net.first(x)[order].tanh())[order.argsort()].sum(1)


FORWARDS = [by_mask, by_sizes, by_slices, by_routing, by_sorting]


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("length", [3, 4])
def test_owners_that_change_between_steps_are_exact(forward, length):
    def draw(step):
        return (samples(6, length, FEATURES, seed=step),)

    assert_exact_steps(Net(forward), draw, steps=12, count=6, batch_size=4)


@pytest.mark.parametrize("later", [(1, 3), (3, 1), (0, 4), (4, 4)])
@pytest.mark.parametrize("forward", FORWARDS)
def test_rows_that_look_regular_at_first_are_exact(forward, later):
    """As many positions of each sample for a while, so that one dimension seems to hold them."""

    def draw(step):
        x = samples(2, 4, FEATURES, seed=step)
        lengths = (2, 2) if step < 6 else later
        x[:, 0, 0] = 0.01 * torch.tensor(lengths) + 0.005
        return (x,)

    assert_exact_steps(Net(forward), draw, steps=9, count=2)


@pytest.mark.parametrize("forward", FORWARDS)
def test_more_samples_than_codes_of_one_pass_are_exact(forward):
    assert_exact(Net(forward), squares, samples(150, 3, FEATURES))


GROUPINGS = ["all-layer", "layer-wise", "param-wise"]
PAIRS = list(product(GROUPINGS, qg.clipping.names()))


@pytest.mark.parametrize(
    ("forward", "grouping", "clipping"),
    [
        pytest.param(
            forward, *pair, marks=() if place % len(FORWARDS) == turn else pytest.mark.slow
        )
        for turn, forward in enumerate(FORWARDS)
        for place, pair in enumerate(PAIRS)
    ],
)
def test_leaving_one_out_moves_the_sum_by_no_more_than_the_sensitivity(forward, clipping, grouping):
    model, x = Net(forward), 3 * samples(5, 4, FEATURES)
    options = {"clipping": clipping, "grouping": grouping}
    whole = qg.clipped_sum(model, lambda: squares(model, x), **options)
    for left_out in range(5):
        rest = x[torch.arange(5) != left_out]
        other = qg.clipped_sum(model, lambda rest=rest: squares(model, rest), **options)
        change = [(whole.grads[name] - other.grads[name]).square().sum() for name in whole.grads]
        assert torch.stack(change).sum().sqrt() <= whole.sensitivity * (1 + 1e-9)


def mixing_of_rows(net, x):
    mask = is_token(x)
    rows = net.first(x[mask])
    rows = rows + 0.01 * rows.mean(0)
    return net.last(x.new_zeros(*x.shape[:2], 3).index_put((mask,), rows)).sum(1)


def detached_mixing_of_rows(net, x):
    mask = is_token(x)
    rows = net.first(x[mask])
    rows = rows * rows.detach().mean(0)
    return net.last(x.new_zeros(*x.shape[:2], 3).index_put((mask,), rows)).sum(1)


def mixing_of_neighbours(net, x):
    mask = is_token(x)
    rows = net.first(x[mask])
    rows = rows + 1e-6 * rows.roll(1, 0)
    return net.last(x.new_zeros(*x.shape[:2], 3).index_put((mask,), rows)).sum(1)


def capacity(net, x):
    """Only the first few rows of all are computed."""
    mask = is_token(x)
    rows = net.first(x[mask])
    rows = torch.cat([rows[:5], torch.zeros_like(rows[5:])])
    return net.last(x.new_zeros(*x.shape[:2], 3).index_put((mask,), rows)).sum(1)


def balanced(net, x):
    """A load-balancing weight over all tokens."""
    tokens = x.flatten(0, 1)
    gate = net.first(tokens).softmax(-1)
    load = F.one_hot(gate.argmax(-1), 3).double().mean(0)
    return net.last(gate * load).view(*x.shape[:2], 2).sum(1)


@pytest.mark.parametrize(
    "forward",
    [mixing_of_rows, detached_mixing_of_rows, mixing_of_neighbours, capacity, balanced],
)
def test_rows_that_are_mixed_are_refused(forward):
    model, x = Net(forward), samples(5, 4, FEATURES)
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: squares(model, x))


def test_a_sample_that_is_broken_leaves_the_others_alone():
    """Rows of others with the same owner's operation do not become what they are not."""

    def forward(net, x):
        halves = [net.first(half) for half in x.chunk(2)]
        return net.last(torch.cat(halves).sum(1))

    for place, value in ((0, torch.nan), (1, torch.inf), (3, torch.nan)):
        model, x = Net(forward), samples(4, 3, FEATURES)
        clean = qg.clipped_sum(model, lambda: squares(model, x))  # noqa: B023
        others = torch.arange(4) != place
        x[place] = value
        found = qg.clipped_sum(model, lambda: squares(model, x))  # noqa: B023
        assert torch.allclose(found.norms[others], clean.norms[others])
        assert all(grad.isfinite().all() for grad in found.grads.values())


def in_the_order_of_data(net, x):
    """Nothing in the graph tells which sample ran first: data needs no gradient."""
    order = x[:, 0, 0].argsort().tolist()
    done = {place: net.first(x[place : place + 1]).tanh() for place in order}
    return net.last(torch.cat([done[place] for place in range(len(x))])).sum(1)


def in_place_of_zeros(net, x):
    out = x.new_zeros(*x.shape[:2], 2)
    for place in x[:, 0, 0].argsort().tolist():
        out[place] = net.last(net.first(x[place]).tanh())
    return out.sum(1)


def by_columns(net, x):
    """Rows of samples are columns of a transposed tensor."""
    order = x[:, 0, 0].argsort().tolist()
    columns = net.first(x[order].sum(1)).tanh().T.unbind(1)
    return net.last(torch.stack([columns[order.index(i)] for i in range(len(x))]))


@pytest.mark.parametrize("forward", [in_the_order_of_data, in_place_of_zeros, by_columns])
def test_samples_that_run_in_another_order_each_time_are_exact(forward):
    def draw(step):
        x = samples(4, 3, FEATURES, seed=step)
        if step < 3:
            x[:, 0, 0] = torch.arange(4).double()  # in their order at first
        return (x,)

    assert_exact_steps(Net(forward), draw, steps=12)


def test_owners_of_what_is_recomputed_are_exact():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(FEATURES, FEATURES).double()

        def forward(self, x):
            mask = is_token(x)
            return x.index_put((mask,), self.layer(x[mask]).tanh())

    def outer(net, x):
        x = net.last(net.first(x)) @ x.new_ones(2, FEATURES) + x
        return checkpoint(net.block, x, use_reentrant=net.is_reentrant).sum(1)

    model = Net(outer)
    model.block, model.is_reentrant = Block(), False
    assert_exact_steps(model, lambda step: (samples(4, 3, FEATURES, seed=step),), steps=6)
    qg.detach(model)
    x, found = samples(4, 3, FEATURES), []
    for model.is_reentrant in (False, True):
        found.append(qg.per_sample_grads(model, lambda: squares(model, x)))
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected)
