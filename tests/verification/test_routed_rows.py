"""Experts whose rows are as many as a multiple of the samples, few of them with a gradient.

Such rows might belong to samples in several ways, all exact for these gradients.
"""

import pytest
import torch
from torch import nn

import quietgrad as qg


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
