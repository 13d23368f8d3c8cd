"""Weights computed from parameters: what was measured is what is summed, to the last bit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import quietgrad
from quietgrad.errors import UnsupportedOperationError

STRATEGIES = ["auto", "ghost", "keep", "discard"]


class With(nn.Module):
    """A linear layer with a weight that is made in the forward."""

    def __init__(self, make, *shape, dtype=torch.float32):
        super().__init__()
        self.w = nn.Parameter(torch.randn(shape).div(8).to(dtype))
        self._make = make

    def forward(self, x):
        return F.linear(x.to(self._make(self.w).dtype), self._make(self.w))


def low_rank_in_autocast(w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return w + w[:, :4] @ w[:4]


HALF = {
    "transposed": (lambda w: w.t(), (32, 8), torch.bfloat16),
    "sliced": (lambda w: w[:8], (16, 32), torch.bfloat16),
    "scaled": (lambda w: w * 2, (8, 32), torch.bfloat16),
    "cast": (lambda w: w.bfloat16(), (8, 32), torch.float32),
    "cast to float16": (lambda w: w.half(), (8, 32), torch.float32),
    "low rank, autocast": (low_rank_in_autocast, (8, 32), torch.float32),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", HALF)
def test_sums_are_not_rounded_to_half_precision(name, strategy):
    """Aligned gradients make a large sum: rounded, it moves by more than one sample's share."""
    torch.manual_seed(0)
    make, shape, dtype = HALF[name]
    model = With(make, *shape, dtype=dtype)
    x = torch.randn(1, 32) + 0.3 * torch.randn(512, 32)
    y = 20 * torch.randn(1, 8)

    def summed(rows):
        closure = lambda: (model(x[rows]).float() - y).square().sum(1)  # noqa: E731
        return quietgrad.clipped_sum(
            model, closure, clipping="abadi", strategy=strategy, verify=False
        )

    whole = summed(slice(None))
    for left_out in (0, 100):
        rest = [i for i in range(512) if i != left_out]
        moved = (whole.grads["w"] - summed(rest).grads["w"]).norm().item()
        assert moved <= whole.sensitivity * 1.001


CANCELLING = {
    "normalized": lambda w: w / w.norm(dim=1, keepdim=True),
    "softmax": lambda w: w.softmax(1),
    "centred": lambda w: w - w.mean(1, keepdim=True),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("clipping", ["auto-v", "auto-s", "abadi"])
@pytest.mark.parametrize("name", CANCELLING)
def test_gradients_that_cancel_on_the_way_back(name, clipping, strategy):
    """What is left of them is rounding, and may be weighted as much as any gradient."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = With(CANCELLING[name], 1, 30)
        row = 3 * model.w.detach() if name == "normalized" else torch.full((1, 30), 1.7)
        x = row * (1 + 0.01 * torch.arange(5)[:, None])
        found = quietgrad.clipped_sum(
            model,
            lambda m=model, x=x: (m(x) * 1e6).sum(1),
            clipping=clipping,
            strategy=strategy,
            verify=False,
        )
        assert found.grads["w"].norm() <= 5 * found.sensitivity * 1.001


@pytest.mark.parametrize("batch", [1, 70])
def test_weight_norm_of_torch_along_its_own_direction(batch):
    torch.manual_seed(0)
    model = parametrizations.weight_norm(nn.Linear(30, 1, bias=False))
    direction = model.parametrizations.weight.original1.detach()
    x = direction * (1 + 0.01 * torch.arange(batch)[:, None])
    found = quietgrad.clipped_sum(model, lambda: model(x).sum(1), clipping="auto-v", verify=False)
    norm = math.sqrt(sum(float(g.square().sum()) for g in found.grads.values()))
    assert norm <= batch * found.sensitivity * 1.001


HOOKS = {
    "register_hook": lambda w: w.register_hook(lambda g: 3 * g),
    "retain_grad": lambda w: w.retain_grad(),
    "of its function": lambda w: w.grad_fn.register_prehook(lambda g: (3 * g[0],)),
    "behind its function": lambda w: w.grad_fn.register_hook(lambda g, _: (3 * g[0],)),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_on_views_of_parameters_are_refused(name):
    def viewed(w):
        view = w.t()
        if view.grad_fn is not None:
            HOOKS[name](view)
        return view

    model = With(viewed, 6, 4)
    with pytest.raises(UnsupportedOperationError, match="hook"):
        quietgrad.clipped_sum(model, lambda: model(torch.ones(3, 6)).square().sum(1))


def test_hooks_on_activations_are_the_models_own():
    model = nn.Linear(3, 2)
    x = torch.randn(4, 3)

    def losses():
        outputs = model(x)
        if outputs.requires_grad:
            outputs.register_hook(lambda g: 2 * g)
        return outputs.square().sum(1)

    doubled = quietgrad.per_sample_grads(model, losses)
    plain = quietgrad.per_sample_grads(model, lambda: model(x).square().sum(1))
    torch.testing.assert_close(doubled["weight"], 2 * plain["weight"])


def test_single_precision_inside_double_is_not_taken_for_mixing():
    for seed in range(10):
        torch.manual_seed(seed)
        inner = nn.Linear(40, 40)
        model = nn.Sequential(inner, nn.Tanh(), ToDouble(), nn.Linear(40, 3).double())
        x = torch.randn(3, 40)
        quietgrad.clipped_sum(model, lambda m=model, x=x: m(x).square().sum(1))


class ToDouble(nn.Module):
    def forward(self, x):
        return x.double()


def test_a_micro_batch_of_broken_samples_leaves_the_precision_alone():
    model = nn.Sequential(nn.Linear(3, 3), ToDouble(), nn.Linear(3, 2).double())
    x = torch.full((4, 3), torch.nan)
    found = quietgrad.clipped_sum(model, lambda: model(x).sum(1))
    assert [grad.dtype for grad in found.grads.values()] == [torch.float32] * 2 + [
        torch.float64
    ] * 2
