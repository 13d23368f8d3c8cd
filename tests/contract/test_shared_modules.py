"""A module that the model holds under two names, with parameters that are still zero."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg


class _TwoNames(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(3, 3), nn.LayerNorm(3)
        self.same = self.norm

    def forward(self, x):
        return self.norm(self.inner(x))


def _twice():
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize("build", [_TwoNames, _twice])
def test_verification_leaves_parameters_as_they_are(build):
    torch.manual_seed(0)
    model, x, y = build(), torch.randn(16, 3), torch.randint(0, 3, (16,))
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}

    def losses():
        return F.cross_entropy(model(x), y, reduction="none")

    for look in (qg.clipped_sum, qg.diagnostics.measure):
        look(model, losses)
        now = dict(model.named_parameters())
        assert set(now) == set(before)
        for name, (parameter, values) in before.items():
            assert now[name] is parameter
            assert torch.equal(parameter, values)
