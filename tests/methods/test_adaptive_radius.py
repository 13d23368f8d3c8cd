"""A radius that follows a private quantile: where it goes, what it costs, how it is resumed."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg

from .helpers import losses, made, step, weights_of


def engine_of(model, data, **options):
    given = {
        "batch_size": len(data),
        "sampling": "full-batch",
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "clipping": "abadi",
        "seed": 0,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return qg.PrivacyEngine(model, optimizer, data, **given | options)


def repeated(name, times):
    model, data = made(name)
    return model, TensorDataset(*(tensor.repeat_interleave(times, 0) for tensor in data.tensors))


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise"])
@pytest.mark.parametrize("start", [1e-3, 50.0])
def test_the_radius_comes_to_the_quantile(start, grouping):
    model, data = repeated("mlp", 40)
    radius = qg.AdaptiveRadius(start=start, quantile=0.5, rate=0.5, count_noise=2.0)
    engine = engine_of(model, data, radius=radius, grouping=grouping, noise_multiplier=0.5)
    for _ in range(60):
        step(engine, model)
    x, y = data.tensors
    engine.detach()
    norms = qg.clipped_sum(model, lambda: losses(model, x, y), grouping=grouping).norms
    for group, column in zip(engine.groups, norms.T, strict=True):
        low, high = column.quantile(0.3), column.quantile(0.7)
        assert 0.9 * low <= group.radius <= 1.1 * high
    assert engine.sensitivity == pytest.approx(math.hypot(*(g.radius for g in engine.groups)))


@pytest.mark.parametrize("groups", [1, 2])
def test_sum_and_count_together_cost_the_noise_multiplier(groups):
    """Two Gaussian releases of one batch are one, of the root of the summed squares."""
    radius = qg.AdaptiveRadius(count_noise=3.0)
    for noise in (0.5, 1.0, 2.0):
        rest = radius.sum_multiplier(noise, groups, 100)
        counts = (math.sqrt(groups) / 2) / 3.0
        assert (rest**-2 + counts**2) ** -0.5 == pytest.approx(noise, rel=1e-12)
        assert rest > noise


def test_the_ledger_holds_one_release_a_step():
    model, data = made("mlp")
    engine = engine_of(model, data, radius=qg.AdaptiveRadius(count_noise=5.0))
    plain = engine_of(made("mlp")[0], data)
    for each, net in ((engine, model), (plain, plain._model)):
        step(each, net)
    assert engine.ledger.steps == 1
    assert engine.epsilon() == plain.epsilon()


def test_the_sums_noise_is_larger_by_what_the_count_took():
    model, data = made("mlp")
    radius = qg.AdaptiveRadius(start=1.0, count_noise=0.6)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = engine_of(model, data, radius=radius, noise="fast")
    assert optimizer is not None
    deviations = []
    before = engine._noise.add
    engine._noise.add = lambda totals, std, divisor=1.0: (
        deviations.append(std) or before(totals, std, divisor)
    )
    step(engine, model)
    rest = radius.sum_multiplier(1.0, 1, len(data))
    assert deviations == pytest.approx([rest * 1.0, 0.6])


def test_a_run_goes_on_with_its_radius(tmp_path):
    radius = qg.AdaptiveRadius(start=3.0, count_noise=5.0)
    model, data = made("mlp")
    engine = engine_of(model, data, radius=radius)
    for _ in range(3):
        step(engine, model)
    engine.save(tmp_path / "state.pt")
    twin, _ = made("mlp")
    other = engine_of(twin, data, radius=radius)
    other.load(tmp_path / "state.pt")
    assert other.groups == engine.groups
    for each, net in ((engine, model), (other, twin)):
        step(each, net)
    assert other.groups == engine.groups
    assert all(torch.equal(weights_of(model)[n], now) for n, now in weights_of(twin).items())


@pytest.mark.parametrize("clipping", ["auto-s", "auto-v", "psac"])
def test_clipping_that_normalizes_is_refused(clipping):
    """There the radius only rescales the step."""
    model, data = made("mlp")
    for start in (1e-3, 1.0, 50.0):
        with pytest.raises(ValueError, match=r"normalizes.*'abadi', 'reparam' or 'global'"):
            engine_of(model, data, radius=qg.AdaptiveRadius(start), clipping=clipping)
    engine_of(model, data, clipping=clipping).detach()


@pytest.mark.parametrize("clipping", ["abadi", "reparam", "global"])
def test_diagnostics_know_the_radius_of_every_step(clipping):
    model, data = made("mlp")
    recorder = qg.diagnostics.StepRecorder(every=1)
    radius = qg.AdaptiveRadius(start=3.0, count_noise=5.0)
    engine = engine_of(model, data, radius=radius, clipping=clipping, diagnostics=recorder)
    radii = []
    for _ in range(3):
        radii.append({group.name: group.radius for group in engine.groups})
        step(engine, model)
    assert [record.radii for record in recorder.history] == radii
    assert radii[0] != radii[1]


@pytest.mark.parametrize("wrong", [{"start": 0}, {"quantile": 0}, {"quantile": 2}, {"rate": -1}])
def test_bad_options(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        qg.AdaptiveRadius(**wrong)


def test_counts_that_cost_too_much_are_refused():
    model, data = made("mlp")
    with pytest.raises(ValueError, match=r"count_noise=0\.4"):
        engine_of(model, data, radius=qg.AdaptiveRadius(count_noise=0.4))
    with pytest.raises(ValueError, match="noise_schedule"):
        engine_of(model, data, radius=qg.AdaptiveRadius(), noise_schedule=lambda step: 1.0)
    engine_of(model, data).detach()
