"""A constant that losses are multiplied by in the backward pass, and divided by before clipping."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.errors import EngineStateError, LossError, StrayGradientError

from .helpers import attach, data, flat, losses, mlp, train

WAYS = {
    "all-layer": {},
    "abadi": {"clipping": "abadi", "radius": 0.3},
    "layer-wise": {"grouping": "layer-wise", "radius": 0.3},
    "ghost": {"strategy": "ghost"},
    "adaptive": {"radius": qg.AdaptiveRadius(count_noise=1.0), "clipping": "abadi"},
    "micro-batches": {"physical_batch_size": 3},
    "verified": {"verification": "every"},
}


def trained(dtype, dataset=None, **options):
    model = mlp().to(dtype)
    pairs = data() if dataset is None else dataset
    given = TensorDataset(pairs.tensors[0].to(dtype), pairs.tensors[1])
    engine = attach(model, dataset=given, **options)
    train(engine, model, 4)
    return model, engine


@pytest.mark.parametrize("scale", [2.0**16, 2.0**-7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_training_is_the_same_to_the_last_bit(way, dtype, scale):
    model, _ = trained(dtype, **WAYS[way])
    scaled, engine = trained(dtype, **WAYS[way], loss_scale=scale)
    assert torch.equal(flat(model), flat(scaled))
    assert engine.settings()["loss_scale"] == scale


def test_inner_and_outer_momentum():
    found = []
    for scale in (1.0, 2.0**12):
        model = mlp()
        engine = attach(model, momentum=qg.InnerOuter(length=2, inner=0.5), loss_scale=scale)
        for batch in engine.batches():
            for x, y in batch:
                engine.backward(partial(losses, model, x, y))
            engine.step()
        found.append(flat(model))
    assert torch.equal(*found)


def test_measured_gradients_are_those_without_it():
    records = []
    for scale in (1.0, 2.0**10):
        recorder = qg.diagnostics.StepRecorder(every=1)
        trained(torch.float64, diagnostics=recorder, loss_scale=scale)
        records.append([(r.step, r.measurement) for r in recorder.history])
    assert records[0]
    assert records[0] == records[1]


def test_broken_and_tiny_samples():
    """Those that are clipped one by one: not finite, or too small for ordinary squares."""
    pairs = data()
    pairs.tensors[0][3] = math.nan
    pairs.tensors[0][5:9] *= 1e-30
    options = {"dataset": pairs, "sampling": "full-batch", "batch_size": 24}
    plain, _ = trained(torch.float32, **options)
    scaled, engine = trained(torch.float32, **options, loss_scale=2.0**8)
    assert engine.nonfinite_samples == 4
    torch.testing.assert_close(flat(scaled), flat(plain), rtol=1e-6, atol=1e-7)


def faint(model, x):
    """Losses whose gradients vanish in float16, from 6e-8 down."""
    return model(x).float().square().sum(1) * 1e-8


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise"])
def test_gradients_that_vanish_in_float16(grouping):
    torch.manual_seed(0)
    x = torch.randn(16, 6)
    start = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).state_dict()

    def moved(dtype, scale):
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        model.load_state_dict(start)
        model.to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        engine = attach(
            model,
            optimizer,
            TensorDataset(x.to(dtype)),
            batch_size=16,
            sampling="full-batch",
            noise_multiplier=1e-6,
            clipping="auto-v",
            grouping=grouping,
            loss_scale=scale,
        )
        before = flat(model).float()
        for batch in engine.batches():
            for (rows,) in batch:
                engine.backward(faint(model, rows))
            engine.step()
        return flat(model).float() - before

    truth = moved(torch.float32, 1.0)
    error = (moved(torch.float16, 2.0**20) - truth).norm() / truth.norm()
    lost = (moved(torch.float16, 1.0) - truth).norm() / truth.norm()
    assert error < 1e-2
    assert lost > 0.5


def test_more_than_float16_losses_can_hold():
    model = mlp().half()
    engine = attach(model, dataset=TensorDataset(torch.randn(24, 3).half()), loss_scale=2.0**16)
    for batch in engine.batches():
        for (x,) in batch:
            with pytest.raises(LossError, match="loss_scale=65536 is more than"):
                engine.backward(model(x).square().sum(1))
            engine.backward(model(x).float().square().sum(1))
        engine.step()
        break


@pytest.mark.parametrize(
    "scale", [0, -1.0, math.nan, math.inf, True, "1024", None, 2.0**25, 1000.0, 3]
)
def test_other_scales_are_refused(scale):
    with pytest.raises(ValueError, match=r"loss_scale=.* is not valid: expected"):
        attach(mlp(), loss_scale=scale)


def test_a_scaler_is_no_scale():
    with pytest.raises(ValueError, match="follows the data"):
        attach(mlp(), loss_scale=torch.amp.GradScaler("cpu"))


def test_a_run_is_resumed_with_its_scale():
    _, engine = trained(torch.float64, loss_scale=2.0**10)
    state = engine.state_dict()
    engine.detach()
    attach(mlp(), loss_scale=2.0**10).load_state_dict(state)
    with pytest.raises(EngineStateError, match="loss_scale=1024"):
        attach(mlp()).load_state_dict(state)


def test_a_state_without_a_scale_has_none():
    _, engine = trained(torch.float64)
    state = engine.state_dict()
    assert state["settings"]["loss_scale"] is None
    with pytest.raises(EngineStateError, match="loss_scale"):
        attach(mlp(), loss_scale=2.0).load_state_dict(state)


def once(engine, model, change):
    for batch in engine.batches():
        for x, y in batch:
            engine.backward(change(losses(model, x, y)))
        engine.step()
        return


@pytest.mark.parametrize(
    "change",
    [
        lambda scaler, values: scaler.scale(values),
        lambda scaler, values: scaler.scale([values])[0],
        lambda scaler, values: scaler.scale(values) / 4,
        lambda scaler, values: scaler.scale(values.float()).double() + 1,
        lambda scaler, values: torch.amp.GradScaler("cpu").scale(values),
    ],
)
@pytest.mark.parametrize("first", [2.0**16, 3.0])
def test_losses_that_a_scaler_scaled(change, first):
    model = mlp()
    engine, scaler = attach(model), torch.amp.GradScaler("cpu", init_scale=first)
    with pytest.raises(LossError, match=r"GradScaler.*loss_scale="):
        once(engine, model, lambda values: change(scaler, values))


def test_a_scaler_that_is_switched_off_does_nothing():
    model = mlp()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    once(attach(model), model, scaler.scale)


def test_factors_that_are_not_a_scalers():
    model = mlp()
    weight = torch.tensor(5.0)
    once(attach(model), model, lambda values: F.relu(values * weight * 2.0))


def test_a_step_of_a_scaler():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach(model, optimizer)
    with pytest.raises(StrayGradientError, match=r"GradScaler.*loss_scale="):
        torch.amp.GradScaler("cpu", enabled=False).step(optimizer)
