import json
import math

import numpy as np
import pytest
import torch

from quietgrad.diagnostics import FILE_NAME, Recorder, measure, read_history
from quietgrad.diagnostics.recorder import NoiseOverSteps

from .helpers import EXACT, made, rows


def train(subject, recorder, steps, lr=0.5):
    """Plain gradient descent, with the recorder looking on."""
    for _ in range(steps):
        recorder.step(subject.losses)
        grads = torch.autograd.grad(subject.losses().mean(), list(subject.model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(subject.model.parameters(), grads, strict=True):
                parameter -= lr * grad


def test_every_kth_step_is_measured():
    subject = made("mlp")
    first = measure(subject.model, subject.losses, averages=(1, 4))
    recorder = Recorder(subject.model, every=3)
    train(subject, recorder, 8)
    assert [record.step for record in recorder.history] == [0, 3, 6]
    assert recorder.history[0].measurement == first  # 16 do not fit in a batch of 9
    assert recorder.history[2].measurement != first
    assert "NOT PRIVATE" in repr(recorder)


def test_measuring_does_not_change_the_training():
    plain, watched = made("mlp"), made("mlp")
    train(watched, Recorder(watched.model, probes=watched.losses), 4)

    class Idle:
        def step(self, closure): ...

    train(plain, Idle(), 4)
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lines_are_appended(tmp_path):
    subject = made("mlp")
    recorder = Recorder(subject.model, every=2, path=tmp_path)
    assert recorder.path == tmp_path / FILE_NAME
    assert not recorder.path.exists()
    train(subject, recorder, 3)
    lines = [json.loads(line) for line in recorder.path.read_text().splitlines()]
    assert [(line["not_private"], line["step"]) for line in lines] == [(True, 0), (True, 2)]
    assert read_history(tmp_path) == read_history(recorder.path) == recorder.history


def test_a_run_that_goes_on_adds_to_its_file(tmp_path):
    subject, path = made("mlp"), tmp_path / "digits.NOT-PRIVATE.jsonl"
    train(subject, Recorder(subject.model, every=2, path=path), 5)
    again = Recorder(subject.model, every=2, path=path, first_step=3, append=True)
    train(subject, again, 4)
    history = read_history(path)
    assert [record.step for record in history] == [0, 2, 3, 4, 6]
    assert history[2:] == again.history


def test_another_run_is_not_mixed_in(tmp_path):
    subject = made("mlp")
    first, late = (Recorder(subject.model, path=tmp_path) for _ in range(2))
    train(subject, first, 2)
    before = first.path.read_text()
    with pytest.raises(FileExistsError, match=r"another folder.*append=True"):
        Recorder(subject.model, path=tmp_path)
    with pytest.raises(FileExistsError, match=r"another folder.*append=True"):
        train(subject, late, 1)  # made before there was a file
    assert first.path.read_text() == before


def test_radii_are_read_again_and_may_be_missing(tmp_path):
    subject = made("mlp")
    recorder = Recorder(subject.model, path=tmp_path, radius=0.5)
    train(subject, recorder, 1)
    assert list(recorder.history[0].radii.values()) == [0.5]
    line = json.loads(recorder.path.read_text())
    del line["radii"]
    recorder.path.write_text(json.dumps(line) + "\n")
    assert read_history(tmp_path)[0].radii == {}


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subject = made("mlp")
    recorder = Recorder(subject.model)
    train(subject, recorder, 1)
    assert recorder.path is None
    assert not list(tmp_path.iterdir())


def test_batches_of_one_are_passed_over():
    subject = made("mlp")
    recorder = Recorder(subject.model, every=2)
    one, all_of_them = (lambda: subject.losses(slice(0, 1))), subject.losses
    measured = [recorder.step(closure) for closure in (one, one, all_of_them, one, all_of_them)]
    assert [m is not None for m in measured] == [False, False, True, False, True]
    assert [record.step for record in recorder.history] == [2, 4]


@pytest.mark.parametrize(
    "wrong",
    [{"every": 0}, {"every": 1.5}, {"window": 0}, {"first_step": -1}, {"averages": (0,)}],
    ids=str,
)
def test_arguments_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
        Recorder(made("mlp").model, **wrong)


@pytest.mark.parametrize("name", ["log.jsonl", "out", "not-private.jsonl"])
def test_a_file_must_say_what_is_in_it(tmp_path, name):
    with pytest.raises(ValueError, match="NOT-PRIVATE"):
        Recorder(made("mlp").model, path=tmp_path / name)


@pytest.mark.parametrize("line", ["{", "3", "[]", "{}", '{"step": 1}'])
def test_what_is_no_record_is_not_read(tmp_path, line):
    subject = made("mlp")
    train(subject, Recorder(subject.model, path=tmp_path), 1)
    with (tmp_path / FILE_NAME).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(ValueError, match="line 2 is not a record"):
        read_history(tmp_path)


def test_correlation_as_by_loops():
    subject = made("cnn", 4)
    recorder = Recorder(subject.model, every=10, probes=subject.losses, window=4)
    noises = []
    for _ in range(6):
        whole = rows(subject.gradients())
        noises.append(whole - whole.mean(0))
        train(subject, recorder, 1)
    for window in (1, 3, 4):
        last = np.stack(noises[-window:])
        one = np.mean([np.linalg.norm(xi) for step in last for xi in step])
        truth = []
        for run in range(1, window + 1):
            means = [last[k : k + run].mean(0) for k in range(window - run + 1)]
            truth.append(np.mean([np.linalg.norm(xi) for step in means for xi in step]) / one)
        assert recorder.correlation(window) == pytest.approx(truth, rel=EXACT)
    assert recorder.correlation() == recorder.correlation(4)
    assert len(recorder.history) == 1


def test_noise_that_never_changes_is_fully_correlated():
    subject = made("mlp")
    recorder = Recorder(subject.model, probes=subject.losses, window=3)
    train(subject, recorder, 3, lr=0.0)
    assert recorder.correlation() == pytest.approx((1.0, 1.0, 1.0))


def test_independent_noise_falls_with_the_root():
    noise, generator = NoiseOverSteps(window=9), torch.Generator().manual_seed(0)
    for _ in range(9):
        noise.add({"w": torch.randn(50, 2000, generator=generator)})
    for run, share in enumerate(noise.correlation(), start=1):
        assert share == pytest.approx(1 / math.sqrt(run), rel=0.02)


def test_noise_that_turns_round_cancels():
    noise, gradients = NoiseOverSteps(window=2), torch.randn(3, 5).double()
    noise.add({"w": gradients})
    noise.add({"w": -gradients})
    assert noise.correlation() == pytest.approx((1.0, 0.0), abs=1e-7)


def test_correlations_that_cannot_be_known_are_refused():
    subject = made("mlp")
    with pytest.raises(ValueError, match="no probes"):
        Recorder(subject.model).correlation()
    recorder = Recorder(subject.model, every=9, probes=subject.losses, window=3)
    for window in (None, 1):
        with pytest.raises(ValueError, match="0 steps are kept"):
            recorder.correlation(window)
    train(subject, recorder, 5)
    with pytest.raises(ValueError, match=r"3 steps are kept \(of at most 3\)"):
        recorder.correlation(4)
    with pytest.raises(ValueError, match="window="):
        recorder.correlation(0)


def test_probes_must_be_several_and_stay_the_same():
    noise = NoiseOverSteps(window=2)
    with pytest.raises(ValueError, match="1 probe"):
        noise.add({"w": torch.randn(1, 3)})
    noise.add({"w": torch.randn(4, 3)})
    with pytest.raises(ValueError, match="5 probes, but 4 before"):
        noise.add({"w": torch.randn(5, 3)})
