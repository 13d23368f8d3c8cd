"""`--device`: commands that train do it on a pretend accelerator as on the CPU."""

import shlex
import signal

import pytest
import torch
from tests.cli.helpers import assert_refused, run, run_json, text_of
from tests.devices import pretend

from quietgrad import recipes
from quietgrad.engine import PrivacyEngine
from quietgrad.recipes import Places
from quietgrad.recipes.recipe import on_device_of

pretend.register()  # before the first backward pass, for which torch counts the devices


@pytest.fixture(autouse=True)
def _same_noise():
    with pretend.noise_of_the_host():
        yield


SMALL = ["--smoke", "--seed", "0", "--accountant", "rdp"]
# Of images, with inner momentum too; of tables; of texts; of generated texts.
KINDS = {
    "mnist": [],
    "cifar10-resnet20": [],
    "fashion-mnist": ["--inner-steps", "1", "--optimizer", "sgd"],
    "adult": [],
    "imdb": [],
    "e2e": [],
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Runs that are given no folder make one in the current one."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def seen(monkeypatch):
    """On which devices there were steps."""
    found, original = [], PrivacyEngine.step

    def step(self):
        found.append({p.device.type for p in self._model.parameters()})
        return original(self)

    monkeypatch.setattr(PrivacyEngine, "step", step)
    return found


def without_times(result):
    """Figures that do not depend on the clock."""
    numbers = {k: v for k, v in result["private"].items() if isinstance(v, int | float)}
    return {name: value for name, value in numbers.items() if name != "seconds"}


@pytest.mark.parametrize("name", KINDS)
def test_training_is_what_it_is_on_the_cpu(name, tmp_path, seen):
    results = {}
    for place in ("cpu", pretend.NAME):
        out = str(tmp_path / place)
        options = [*SMALL, *KINDS[name], "--device", place, "--baseline", "--out", out]
        results[place] = run_json("train", name, *options)
    # Dropout draws from the device's generator, and moving to a device of Python unties weights.
    slack = 0.02 if name == "e2e" else 1e-6
    found, expected = (without_times(results[place]) for place in (pretend.NAME, "cpu"))
    assert found == pytest.approx(expected, rel=slack)
    assert seen[0] == {"cpu"}
    assert seen[-1] == {pretend.NAME}


@pytest.mark.parametrize("places", [("cpu", pretend.NAME), (pretend.NAME, "cpu")])
def test_a_run_is_resumed_on_another_device(tmp_path, monkeypatch, seen, places):
    out, options = tmp_path / "run", [*SMALL, "--epochs", "2"]
    begun = PrivacyEngine.backward

    def stop(self, losses):
        if self.steps_taken == 3:
            signal.raise_signal(signal.SIGINT)
        return begun(self, losses)

    with monkeypatch.context() as patched:
        patched.setattr(PrivacyEngine, "backward", stop)
        stopped = run("train", "digits", *options, "--out", str(out), "--device", places[0])
    assert stopped.exit_code == 130, stopped.output
    hint = shlex.split(stopped.stderr.partition("Resume with: ")[2])
    assert ("--device" in hint) == (places[0] != "cpu")
    resumed = run_json("train", "digits", "--out", str(out), "--resume", "--device", places[1])
    whole = run_json("train", "digits", *options, "--out", str(tmp_path / "whole"))
    for name in ("test_accuracy", "steps", "epsilon", "lost_steps"):
        assert resumed["private"][name] == pytest.approx(whole["private"][name])
    assert {places[0]} in seen
    assert {places[1]} in seen


@pytest.mark.parametrize("kind", ["gradient", "example"])
def test_audits_find_the_same(kind, seen):
    options = [*SMALL, "--kind", kind, "--device"]
    found = [run_json("audit", "mnist", *options, place) for place in ("cpu", pretend.NAME)]
    assert found[0] == found[1]
    assert seen[-1] == {pretend.NAME}


@pytest.mark.parametrize("command", ["compare", "sweep"])
def test_trials_are_made_on_the_device(command, seen):
    options = ["--smoke", "--accountant", "rdp", "--seeds", "1", "--device", pretend.NAME]
    options += ["--over", "lr=0.1"] if command == "sweep" else ["--clipping", "auto-s"]
    result = run(command, "digits", *options)
    assert result.exit_code == 0, result.output
    assert seen
    assert all(places == {pretend.NAME} for places in seen)


@pytest.mark.parametrize("command", ["train", "audit", "compare", "sweep"])
@pytest.mark.parametrize("name", ["cuda", "nonsense", "pretend:9", "", "CPU", "meta"])
def test_unknown_devices_are_refused_with_those_that_there_are(command, name):
    result = run(command, "digits", "--smoke", "--device", name)
    expected = f"device={name!r} is not available: expected cpu, pretend, pretend:0, pretend:1"
    assert_refused(result, expected)


def test_without_an_accelerator_the_refusal_says_so(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    result = run("train", "digits", "--smoke", "--device", pretend.NAME)
    assert_refused(result, "expected cpu (torch")
    assert "finds no accelerator here" in text_of(result)


def test_only_pinned_columns_are_moved_without_waiting(monkeypatch):
    model = recipes.load("digits").small().build_model(Places()).to(pretend.NAME)
    pinned, other = torch.randn(4, 3), torch.arange(4)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self is pinned)
    with pretend.counting() as counts:
        moved = on_device_of(model, [pinned, other])
    assert counts.sync_count == 1
    assert [column.device.type for column in moved] == [pretend.NAME] * 2
    assert torch.equal(moved[0].cpu(), pinned)


def test_a_batch_for_the_cpu_is_left_as_it_is():
    model, batch = torch.nn.Linear(2, 2), [torch.randn(4, 2)]
    assert on_device_of(model, batch) is batch
