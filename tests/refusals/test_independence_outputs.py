"""Whatever a model returns is compared, sample by sample, or the model is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

import quietgrad as qg
from quietgrad.errors import QuietgradError, SampleMixingError

from .helpers import FEATURES, Net, assert_exact, samples


def centred(x):
    return x - x.mean(0)


class Slotted:
    __slots__ = ("found",)

    def __init__(self, found):
        self.found = found


class Itself:
    def __init__(self, found):
        self.found, self.own = found, self


PACKED = {
    "distribution": (lambda h: Categorical(logits=h), lambda out: -out.logits[:, 0]),
    "another distribution": (lambda h: Normal(h, 1.0), lambda out: out.mean.square().sum(1)),
    "namespace": (lambda h: SimpleNamespace(h=h), lambda out: out.h.square().sum(1)),
    "slots": (Slotted, lambda out: out.found.square().sum(1)),
    "itself": (Itself, lambda out: out.found.square().sum(1)),
    "list of samples": (
        lambda h: list(h.unbind(0)),
        lambda out: torch.stack([row.square().sum() for row in out]),
    ),
    "tuple of samples": (
        lambda h: h.unbind(0),
        lambda out: torch.stack([row.square().sum() for row in out]),
    ),
    "list of layers": (lambda h: [h, h + 1, h + 2, h], lambda out: out[1].square().sum(1)),
}


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("count", [2, 4, 6])
def test_statistics_are_found_in_all_that_is_returned(name, count):
    pack, losses = PACKED[name]
    model = Net(lambda net, x: pack(net.last(torch.tanh(centred(x)))))
    x = samples(count)
    with pytest.raises(SampleMixingError, match="changed when other samples"):
        qg.clipped_sum(model, lambda: losses(model(x)))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("count", [2, 4, 6])
def test_samples_kept_apart_in_it_are_exact(name, count):
    pack, losses = PACKED[name]
    model = Net(lambda net, x: pack(net.last(torch.tanh(x))))
    assert_exact(model, lambda m, x: losses(m(x)), samples(count))


def test_one_sample_that_reaches_another_in_a_list_is_found():
    def forward(net, x):
        rows = list(net.last(x).unbind(0))
        return [rows[0], rows[1] + x[0, 0], *rows[2:]]

    model, x = Net(forward), samples(2)
    with pytest.raises(SampleMixingError):
        qg.clipped_sum(model, lambda: torch.stack([row.square().sum() for row in model(x)]))


def test_outputs_for_each_sample_may_have_their_own_length():
    def forward(net, x, lengths):
        return [row[:n] for row, n in zip(net.first(x), lengths.tolist(), strict=True)]

    def losses(model, x, lengths):
        return torch.stack([row.square().sum() for row in model(x, lengths)])

    assert_exact(Net(forward), losses, samples(4, 5, FEATURES), torch.tensor([1, 5, 2, 3]))


def test_candidates_of_the_batch_are_refused():
    """The number of columns is that of different ids in the batch."""
    items = torch.randn(50, FEATURES, dtype=torch.float64)

    def forward(net, x, ids):
        candidates = torch.unique(ids)
        return (net.first(x) @ items[candidates].T).log_softmax(1)

    def losses(model, x, ids):
        places = torch.unique(ids, return_inverse=True)[1]
        return -model(x, ids).gather(1, places[:, None]).squeeze(1)

    model, x, ids = Net(forward), samples(6), torch.tensor([3, 1, 4, 1, 5, 9])
    with pytest.raises(SampleMixingError, match="shape"):
        qg.clipped_sum(model, lambda: losses(model, x, ids))


def test_places_counted_from_the_longest_sample_are_refused():
    def forward(net, x, lengths):
        longest = int(lengths.max())
        weights = torch.arange(longest, 0, -1).double()
        return net.first(x[:, :longest] * weights[None, :, None])

    def losses(model, x, lengths):
        out = model(x, lengths)
        kept = torch.arange(out.shape[1])[None] < lengths[:, None]
        return (out.square().sum(2) * kept).sum(1)

    model, x, lengths = Net(forward), samples(4, 8, FEATURES), torch.tensor([1, 2, 3, 8])
    with pytest.raises(SampleMixingError, match="shape"):
        qg.clipped_sum(model, lambda: losses(model, x, lengths))


class Keeping(nn.Module):
    """Leaves its result in an attribute, and returns what is given to it."""

    def __init__(self, returned):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.out, self.returned = nn.Linear(FEATURES, 2).double(), None, returned

    def forward(self, x):
        self.out = self.linear(centred(x))
        return self.returned(self.out)


RESULTS = {
    "nothing": lambda out: None,
    "a table": lambda out: torch.zeros(len(out), 2, dtype=torch.long),
    "a closure": lambda out: lambda: out,
    "a name": lambda out: "done",
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_that_are_not_returned_are_refused(name):
    model, x = Keeping(RESULTS[name]), samples(5)

    def losses():
        model(x)
        out, model.out = model.out, None
        return F.cross_entropy(out, torch.zeros(5, dtype=torch.long), reduction="none")

    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, losses)


def test_rows_of_all_samples_one_after_the_other_are_refused():
    """Three, one, two and two rows: nothing that could be compared by samples."""
    lengths = torch.tensor([3, 1, 2, 2, 3])

    def forward(net, x):
        return torch.cat(
            [row[:n] for row, n in zip(net.first(x - x.mean(0)), lengths, strict=True)]
        )

    def losses():
        rows = model(x).square().sum(1).split(lengths.tolist())
        return torch.stack([part.sum() for part in rows])

    model, x = Net(forward), samples(5, 4, FEATURES)
    with pytest.raises(QuietgradError):
        qg.clipped_sum(model, losses)


@pytest.mark.parametrize("count", [2, 3, 4, 12])
def test_a_table_returned_beside_is_not_taken_for_samples(count):
    model = Net(lambda net, x: {"table": torch.arange(12.0), "out": net.last(x), "count": len(x)})
    assert_exact(model, lambda m, x: m(x)["out"].square().sum(1), samples(count))
