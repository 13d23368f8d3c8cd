"""Models that draw: what is right passes, whatever it draws."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import quietgrad as qg
from quietgrad.capture.draws import RepeatableDraws
from quietgrad.inspection import Severity
from quietgrad.inspection.randomness import Randomness

from .broken import B, D, Wrapped, cross_entropy, data


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def shuffled(x):
    order = torch.randperm(len(x))
    return x[order].tanh()[order.argsort()]


RANDOM = {
    "dropout": lambda: nn.Sequential(nn.Linear(D, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    "functional dropout": lambda: Wrapped(lambda x: F.dropout(x, 0.5)),
    "feature dropout": lambda: Wrapped(lambda x: F.dropout1d(x.unsqueeze(2), 0.5).squeeze(2)),
    "a mask that all samples share": lambda: Wrapped(lambda x: x * F.dropout(torch.ones(1, D))),
    "noise on activations": lambda: Wrapped(lambda x: x + torch.randn_like(x)),
    "one draw for the whole batch": lambda: Wrapped(lambda x: x * torch.rand(())),
    "one draw, in a batch of one": lambda: Wrapped(lambda x: x * torch.rand(1)),
    "one draw for each column": lambda: Wrapped(lambda x: x * torch.rand(D)),
    "as many draws as samples": lambda: Wrapped(lambda x: x + torch.rand(3).sum()),
    "stochastic depth": lambda: Wrapped(lambda x: x * (0.9 + torch.rand(len(x), 1)).floor()),
    "stochastic depth in place": lambda: Wrapped(
        lambda x: x * x.new_empty(len(x), 1).bernoulli_(0.5)
    ),
    "a mask by its probabilities": lambda: Wrapped(lambda x: x * torch.bernoulli(x.sigmoid())),
    "gumbel softmax": lambda: Wrapped(lambda x: F.gumbel_softmax(x, dim=-1)),
    "hard gumbel softmax": lambda: Wrapped(lambda x: F.gumbel_softmax(x, hard=True)),
    "times of diffusion": lambda: Wrapped(lambda x: x * torch.randint(1, 10, (len(x), 1)) / 10),
    "categories": lambda: Wrapped(
        lambda x: x + torch.multinomial(x.detach().softmax(1), 2).sum(1, True)
    ),
    "categories for all": lambda: Wrapped(lambda x: x + torch.multinomial(torch.ones(9), 4).sum()),
    "columns permuted": lambda: Wrapped(lambda x: x[:, torch.randperm(D)]),
    "normal around each": lambda: Wrapped(lambda x: torch.normal(x.detach(), 1.0) * x),
    "exponential": lambda: Wrapped(lambda x: x * torch.empty_like(x).exponential_(2.0)),
    "sequence first": lambda: Wrapped(lambda x: x * torch.rand(4, len(x), 1).mean(0)),
    "several rows for each, apart": lambda: Wrapped(
        lambda x: x * torch.rand(2 * len(x)).view(2, len(x), 1).sum(0)
    ),
    "shuffled and put back": lambda: Wrapped(shuffled),
    "several rows for each": lambda: Wrapped(
        lambda x: x * torch.rand(2 * len(x)).view(len(x), 2).sum(1, keepdim=True)
    ),
    "draws with gradients": lambda: Wrapped(
        lambda x: x * torch.rand(len(x), 1, requires_grad=True)
    ),
}


@pytest.mark.parametrize("name", RANDOM)
def test_randomness_is_no_fault(name):
    report = qg.check(RANDOM[name](), data(), cross_entropy)
    assert report.ok, str(report)
    assert "made repeatable" in report.findings[-1].what
    assert all(f.verdict is not Severity.SKIPPED for f in report.findings), str(report)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, 1, dropout=0.5, batch_first=True)
        self.recurrent = nn.LSTM(D, D, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(D, 3)

    def forward(self, x):
        x = x.unsqueeze(1).expand(-1, 4, -1) * torch.arange(1.0, 5.0).view(1, 4, 1)
        attended, _ = self.attention(x, x, x)
        outputs, _ = self.recurrent(attended)
        return self.head(outputs[:, -1])


def test_dropout_inside_layers():
    report = qg.check(Attending(), data(), cross_entropy)
    assert report.ok, str(report)
    assert "MultiheadAttention" in report.findings[-1].what
    assert "LSTM" in report.findings[-1].what


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant, mixes=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(D, D), nn.Dropout(), nn.Tanh(), nn.Linear(D, 3))
        self.options = {"use_reentrant": reentrant}
        self.mixes = mixes

    def forward(self, x):
        body = checkpoint(self.body, x.requires_grad_(), **self.options)
        return body - body.detach().mean(0) if self.mixes else body


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_that_checkpointing_runs_again(reentrant):
    model, batch, found = Checkpointed(reentrant=reentrant), data(), []

    def noted(model, batch):
        losses = cross_entropy(model, batch)
        found.append(losses.detach())
        return losses

    report = qg.check(model, batch, noted, samples=4)
    assert {f.verdict for f in report.findings} == {Severity.OK}, str(report)
    assert "dropout in Dropout" in report.findings[-1].what
    without = cross_entropy(model.eval(), batch)
    assert not any(len(each) == B and torch.allclose(each, without) for each in found)
    assert not qg.check(Checkpointed(reentrant=reentrant, mixes=True), data(), cross_entropy).ok


def by_the_share_that_is_kept(x):
    mask = torch.bernoulli(torch.full_like(x, 0.5))
    return x * mask / mask.mean()


def by_masks_of_others(x):
    mask = F.dropout(torch.ones_like(x))
    return x * mask.roll(1, 0)


@pytest.mark.parametrize("drop", [by_the_share_that_is_kept, by_masks_of_others])
def test_masks_that_depend_on_other_samples_are_found(drop):
    report = qg.check(Wrapped(drop), data(), cross_entropy)
    (finding,) = [each for each in report.faults if each.check == "independence"]
    assert "removed" in finding.what
    assert "the forward of the model itself (Wrapped)" in finding.what


def test_draws_in_a_loop_over_samples_are_skipped_not_blamed():
    report = qg.check(
        Wrapped(lambda x: torch.stack([row * torch.rand(()) for row in x])), data(), cross_entropy
    )
    assert report.ok, str(report)
    skipped = [f for f in report.findings if f.verdict is Severity.SKIPPED]
    assert {f.check for f in skipped} == {"independence", "exactness", "sensitivity"}
    assert all("drawn by rand cannot" in f.what for f in skipped)


def test_a_sample_draws_the_same_in_any_batch():
    draws = RepeatableDraws(3)

    def drawn(places):
        with draws.running(places):
            return torch.rand(2), torch.randn(len(places), 20)

    shared, rows = drawn([0, 1, 2])
    for places in ([1], [2, 0], [1, 1], [0, 1, 2, 2]):
        again, some = drawn(places)
        assert torch.equal(again, shared)
        assert torch.equal(some, rows[places])
    assert torch.equal(drawn([1, 1, 1])[1], rows)  # as many draw from the same state
    assert not draws.unaligned
    assert not torch.equal(rows[0], rows[1])


def test_single_numbers_are_drawn_from_both_ends():
    randomness = Randomness(2)
    found = []
    for randomness.is_low in (True, False):
        with randomness.running([0, 1]):
            found.append((float(torch.rand(1)), float(torch.empty(()).uniform_(2.0, 3.0))))
    assert max(found[0][0], found[0][1] - 2) < 0.05
    assert min(found[1][0], found[1][1] - 2) > 0.95


def test_permutations_leave_nothing_in_place():
    for samples in (2, 3, 9):
        with Randomness(samples).running(range(samples)):
            assert (torch.randperm(samples) != torch.arange(samples)).all()


def test_draws_with_a_generator_are_left_alone():
    randomness = Randomness(1)
    expected = torch.randn(3, generator=torch.Generator().manual_seed(4))
    for _ in range(2):
        with randomness.running([0], noting=False):
            drawn = torch.randn(3, generator=torch.Generator().manual_seed(4))
        assert torch.equal(drawn, expected)


def test_layers_that_start_at_zero_are_not_taken_for_random():
    model = Wrapped(lambda x: x)
    nn.init.zeros_(model.head.weight)
    report = qg.check(model, data(), cross_entropy)
    assert report.findings[-1].what == "none was drawn."


def by_numpy(x):
    return torch.as_tensor(np.random.rand(len(x), 1)).float()  # noqa: NPY002


def by_random(x):
    return torch.tensor([[random.random()] for _ in x])


def by_gamma(x):
    return torch.distributions.Gamma(2.0, torch.ones(len(x), 1)).sample()


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.head = nn.Linear(D, 3)
        self.draw = draw

    def forward(self, x):
        return self.head(x * self.draw(x) if self.training else x)


UNALIGNED = (by_numpy, by_random)


@pytest.mark.parametrize("draw", UNALIGNED)
def test_what_cannot_be_kept_the_same_is_skipped_not_blamed(draw):
    report = qg.check(Drawing(draw), data(), cross_entropy)
    assert report.ok, str(report)
    skipped = {f.check for f in report.findings if f.verdict is Severity.SKIPPED}
    assert skipped == {"independence", "exactness", "sensitivity"}


def test_draws_by_rejection_are_kept_the_same():
    report = qg.check(Drawing(by_gamma), data(), cross_entropy)
    assert {f.verdict for f in report.findings} == {Severity.OK}, str(report)


def test_generators_are_left_as_they_were():
    model, batch = Drawing(by_numpy), data()
    states = torch.get_rng_state(), str(np.random.get_state()), random.getstate()  # noqa: NPY002
    qg.check(model, batch, cross_entropy)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (str(np.random.get_state()), random.getstate())  # noqa: NPY002
