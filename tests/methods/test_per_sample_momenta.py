"""Algorithm 1 keeps what inner momentum computes again: with enough past weights they agree."""

import pytest
import torch

import quietgrad as qg
from quietgrad.methods import PerSampleMomenta

from .helpers import COUNT, attach, losses, made, step, weights_of


def test_inner_momentum_with_all_past_weights_is_algorithm_1():
    """Normalized, so that the factor gamma does not matter."""
    model, data = made("mlp")
    x, y = data.tensors
    options = qg.InnerOuter(length=50, inner=0.5, outer=None, start="repeat")
    engine = attach(model, data, momentum=options, clipping="auto-v")
    twin, _ = made("mlp")
    reference = PerSampleMomenta(twin, lambda: losses(twin, x, y), gamma=0.5)
    for _ in range(4):
        step(engine, model)
        with torch.no_grad():
            for name, total in reference.clipped_sum().items():
                twin.get_parameter(name).sub_(total, alpha=0.5 / COUNT)
        reference.update()
        for name, weights in weights_of(model).items():
            torch.testing.assert_close(weights, weights_of(twin)[name], rtol=1e-7, atol=1e-8)


def test_gamma_is_a_share():
    model, data = made("mlp")
    x, y = data.tensors
    with pytest.raises(ValueError, match="gamma"):
        PerSampleMomenta(model, lambda: losses(model, x, y), gamma=0.0)
