"""An engine's own gradients, measured as they are clipped."""

import json
import warnings

import pytest
import torch
from tests.methods.helpers import attach, losses, made, step

import quietgrad as qg
from quietgrad.diagnostics import StepRecorder, measure, read_history


def trained(recorder, steps=5, **options):
    model, data = made("mlp")
    engine = attach(model, data, diagnostics=recorder, physical_batch_size=6, **options)
    for _ in range(steps):
        step(engine, model)
    return engine, model


def test_it_measures_every_second_step_and_changes_nothing(tmp_path):
    recorder = StepRecorder(every=2, path=tmp_path)
    _, model = trained(recorder, seed=0)
    _, plain = trained(None, seed=0)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    assert [record.step for record in recorder.history] == [0, 2, 4]
    assert "NOT-PRIVATE" in recorder.path.name
    lines = recorder.path.read_text().splitlines()
    assert len(lines) == 3
    assert all("not_private" in json.dumps(json.loads(line)).lower() for line in lines)
    assert [record.step for record in read_history(recorder.path)] == [0, 2, 4]


@pytest.mark.parametrize("grouping", ["all-layer", "layer-wise"])
def test_it_measures_what_measure_does(grouping):
    recorder = StepRecorder(every=1)
    model, data = made("mlp")
    x, y = data.tensors
    expected = measure(model, lambda: losses(model, x, y), grouping=grouping, averages=(1,))
    engine = attach(model, data, diagnostics=recorder, physical_batch_size=6, grouping=grouping)
    step(engine, model)
    found = recorder.history[0].measurement
    assert found.sampling_noise == pytest.approx(expected.sampling_noise, rel=1e-6)
    assert found.clipped_cosine == pytest.approx(expected.clipped_cosine, rel=1e-6)
    assert found.clipped == expected.clipped


def test_with_inner_momentum_it_sees_the_momenta():
    plain, inner = StepRecorder(every=1), StepRecorder(every=1)
    trained(plain, steps=2)
    trained(inner, steps=2, momentum=qg.InnerOuter(length=1, inner=1.0, outer=None))
    before, after = (each.history[1].measurement.norms.mean for each in (plain, inner))
    assert after > 1.2 * before


def test_small_micro_batches_are_passed_over():
    recorder = StepRecorder(every=1)
    model, data = made("mlp")
    engine = attach(model, data, diagnostics=recorder, physical_batch_size=1)
    step(engine, model)
    assert recorder.history == ()


def test_bad_arguments():
    with pytest.raises(ValueError, match="every"):
        StepRecorder(every=0)


def test_a_resumed_run_goes_on_in_its_file_and_another_does_not(tmp_path):
    engine, _ = trained(StepRecorder(every=1, path=tmp_path), steps=2)
    engine.save(tmp_path / "state.pt")
    with pytest.raises(FileExistsError, match=r"another folder.*append=True"):
        StepRecorder(every=1, path=tmp_path)
    model, data = made("mlp")
    recorder = StepRecorder(every=1, path=tmp_path, append=True)
    resumed = attach(model, data, diagnostics=recorder, physical_batch_size=6)
    resumed.load(tmp_path / "state.pt")
    step(resumed, model)
    assert [record.step for record in read_history(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize(("radius", "is_alike"), [(1e-6, True), (1e6, False)])
@pytest.mark.parametrize("clipping", ["abadi", "auto-s", "psac"])
def test_clipping_functions_that_act_alike_are_told_with_a_label(clipping, radius, is_alike):
    recorder = StepRecorder(every=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained(recorder, clipping=clipping, radius=radius)
    said = [str(each.message) for each in caught if "act alike" in str(each.message)]
    assert len(said) == int(is_alike)  # once, however many measurements there are
    assert all("NOT PRIVATE" in words for words in said)
    shown = str(recorder.history[0].measurement)
    assert recorder.history[0].measurement.are_all_clipped is is_alike
    assert ("act alike" in shown) is is_alike
    assert shown.startswith("NOT PRIVATE")
