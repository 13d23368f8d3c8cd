"""Experts whose rows are as many as a multiple of the samples, few of them with a gradient.

Such rows might belong to samples in several ways, all exact for these gradients.
"""

import pytest
import torch
from torch import nn

import quietgrad as qg
from quietgrad.errors import SampleMixingError


class Experts(nn.Module):
    """Each token goes through the expert that a fixed rule gives it; the last one counts."""

    def __init__(self, experts=3, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.stack = nn.Parameter(torch.randn(experts, width, width))

    def forward(self, x, choice):
        samples, tokens, width = x.shape
        rows, chosen = x.flatten(0, 1), choice.flatten()
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            place = (chosen == number).nonzero().flatten()
            hidden = torch.tanh(expert(rows[place])) @ self.stack[number]
            out = out.index_add(0, place, hidden)
        return out.view(samples, tokens, width)[:, -1].square().sum(1)


@pytest.mark.parametrize("seed", range(12))
def test_they_are_verified_and_exact(seed):
    generator = torch.Generator().manual_seed(seed)
    model = Experts().double()
    x = torch.randn(3, 6, 4, generator=generator).double()
    choice = torch.randint(3, (3, 6), generator=generator)
    choice[:, :-1] = (torch.arange(15) % 3).view(3, 5)  # five each, and some more
    found = qg.per_sample_grads(model, lambda: model(x, choice))
    for sample in range(3):
        model.zero_grad()
        model(x[sample : sample + 1], choice[sample : sample + 1]).sum().backward()
        for name, parameter in model.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(found[name][sample], expected)


# -- dropout on rows that belong to samples in any order and number ------------------------------


def keep(h):
    return h


def by_the_mean(h):
    return h - h.detach().mean(0)


def by_a_hidden_mean(h):
    """What dropout leaves out becomes the mean of all rows."""
    mask = torch.bernoulli(torch.full_like(h, 0.5))
    return mask * h + (1 - mask) * h.detach().mean(0)


def by_chance(h):
    return h - (torch.rand(len(h), 1) < 0.3) * h.detach().mean(0)


def by_a_permutation(h):
    return h + 0.5 * h.detach()[torch.randperm(len(h))]


def if_draws_are(low, high, draw):
    """Mixes where the mean of what is drawn is between these."""

    def between(h):
        return by_the_mean(h) if low < draw(h).mean() < high else h

    return between


def uniform(h):
    return torch.rand(len(h))


GATES = {
    "small": if_draws_are(0.0, 0.1, uniform),
    "middling": if_draws_are(0.4, 0.6, uniform),
    "large": if_draws_are(0.9, 1.0, uniform),
    "middling, of the same shape": if_draws_are(0.4, 0.6, torch.rand_like),
    "middling, between bounds": if_draws_are(4, 6, lambda h: torch.empty(len(h)).uniform_(0, 10)),
    "small, normal": if_draws_are(-9, -1, torch.randn_like),
    "large, normal": if_draws_are(11, 19, lambda h: torch.empty(len(h)).normal_(10, 2)),
}


class RoutedWithDropout(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head, self.between = nn.Linear(6, 2), between

    def forward(self, x, choice):
        rows, chosen, out = x.flatten(0, 1), choice.flatten(), 0
        for number, expert in enumerate(self.experts):
            place = (chosen == number).nonzero().flatten()
            hidden = self.between(nn.functional.dropout(torch.relu(expert(rows[place])), 0.2))
            out = out + torch.zeros_like(rows).index_add(0, place, hidden)
        return self.head(out.view(x.shape).mean(1)).square().sum(1)


class PackedWithDropout(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(6, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.first, self.head, self.between = nn.Linear(6, 6), nn.Linear(8, 2), between

    def forward(self, x, choice):
        lengths = 2 + choice.sum(1) % 5
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        packed = packed._replace(data=self.between(torch.tanh(self.first(packed.data))))
        _, (h, _) = self.lstm(packed)
        return self.head(h[-1]).square().sum(1)


class MaskedWithDropout(nn.Module):
    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.between = nn.Linear(6, 6), nn.Linear(6, 2), between

    def forward(self, x, choice):
        mask = choice > 0
        rows = nn.functional.dropout(torch.relu(self.first(x[mask])), 0.3)
        place = mask.flatten().nonzero().flatten()
        out = torch.zeros(mask.numel(), 6).index_add(0, place, self.between(rows))
        return self.head(out.view(*mask.shape, 6).mean(1)).square().sum(1)


KINDS = [RoutedWithDropout, PackedWithDropout, MaskedWithDropout]
MIXING = [by_the_mean, by_a_hidden_mean, by_chance, by_a_permutation]


def samples_of(seed, count=6):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 7, 6, generator=generator), torch.randint(
        3, (count, 7), generator=generator
    )


@pytest.mark.parametrize("count", [6, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_dropout_on_them_is_not_refused(kind, count):
    for seed in range(3):
        model, batch = kind(keep), samples_of(seed, count)
        qg.per_sample_grads(model, lambda model=model, batch=batch: model(*batch))


@pytest.mark.every_nth(2)
@pytest.mark.parametrize("kind", KINDS)
def test_check_finds_nothing_wrong_with_it(kind):
    for seed in range(3):
        report = qg.check(kind(keep), samples_of(seed), lambda model, batch: model(*batch))
        assert report.ok, str(report)


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("mixing", MIXING)
@pytest.mark.parametrize("kind", KINDS)
def test_mixing_beside_dropout_is_refused(kind, mixing):
    model, batch = kind(mixing), samples_of(0)
    with pytest.raises(SampleMixingError):
        for _ in range(12):  # what happens by chance may not happen at once
            qg.per_sample_grads(model, lambda: model(*batch))
    assert not qg.check(model, batch, lambda model, batch: model(*batch)).ok


@pytest.mark.every_nth(3)
@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("kind", [RoutedWithDropout, MaskedWithDropout])
def test_mixing_that_many_draws_together_switch_on(kind, gate):
    model, batch = kind(gate), samples_of(0)
    with pytest.raises(SampleMixingError):
        qg.per_sample_grads(model, lambda: model(*batch))
    assert not qg.check(model, batch, lambda model, batch: model(*batch)).ok
