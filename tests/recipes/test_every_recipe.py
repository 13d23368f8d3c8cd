"""What holds for every recipe: a new one inherits these by its name alone."""

import dataclasses
import json

import pytest
import torch
from click.testing import CliRunner

from quietgrad import recipes
from quietgrad.cli import main
from quietgrad.recipes import Places
from quietgrad.recipes.training import losses_of

NAMES = recipes.names()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if place % 2 else ())
        for place, name in enumerate(NAMES)
    ],
)
def test_a_smoke_run_ends_with_a_score_and_a_report(name, tmp_path):
    out = tmp_path / "run"
    options = ["--smoke", "--seed", "0", "--accountant", "rdp", "--out", str(out), "--json"]
    result = CliRunner().invoke(main, ["train", name, *options])
    assert result.exit_code == 0, result.output
    private = json.loads(result.stdout)["private"]
    assert private["steps"] > 0
    assert private["epsilon"] <= private["target_epsilon"]
    assert any(key.startswith("test_") for key in private)
    assert (out / "report.html").stat().st_size > 1000
    assert (out / "model.safetensors").exists()
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_plain_and_possible(name):
    recipe = recipes.load(name)
    assert recipe.summary
    json.dumps(recipe.as_dict())
    for clipping, changes in recipe.tuned.items():
        changed = recipe.changed(clipping=clipping).settings
        assert all(getattr(changed, field) == value for field, value in changes.items())
        assert changed.clipping_function is not None
    for reference in recipe.references:
        assert reference.source
        assert reference.value <= (1 if recipe.task.is_share else 100)


@pytest.mark.parametrize("name", [n for n in NAMES if recipes.load(n).transform is not None])
def test_views_are_one_loss_for_each_sample(name):
    recipe = recipes.load(name).small().changed(views=2)
    torch.manual_seed(0)
    model = recipe.build_model(Places())
    samples = [recipe.split(Places()).train[i] for i in range(4)]
    batch = [torch.stack(column) for column in zip(*samples, strict=True)]
    assert losses_of(recipe)(model, batch).shape == (4,)


def test_views_need_a_transform():
    recipe = recipes.load("adult").changed(views=2)
    with pytest.raises(ValueError, match="'adult' has no random views"):
        losses_of(recipe)


def test_another_clipping_brings_its_settings_and_what_is_given_wins():
    recipe = recipes.load("fashion-mnist")
    assert (recipe.settings.learning_rate, recipe.settings.radius) == (0.4, 1.0)
    abadi = recipe.changed(clipping="abadi").settings
    assert (abadi.learning_rate, abadi.radius) == (4.0, 0.1)
    assert recipe.changed(clipping="abadi", learning_rate=2.0).settings.learning_rate == 2.0


def test_stability_is_the_constant_of_the_clipping_function():
    settings = recipes.load("mnist").settings
    auto_s = dataclasses.replace(settings, stability=0.5).clipping_function
    assert auto_s.gamma == 0.5
    psac = dataclasses.replace(settings, clipping="psac", stability=0.5).clipping_function
    assert psac.r == 0.5
    with pytest.raises(ValueError, match="'abadi' has no constant"):
        _ = dataclasses.replace(settings, clipping="abadi", stability=0.5).clipping_function


def test_a_limit_keeps_the_first_samples():
    recipe = recipes.load("digits").small().changed(limit=10)
    assert len(recipe.split(Places()).train) == 10
    with pytest.raises(ValueError, match="limit=1000: expected 1 to 64"):
        recipe.changed(limit=1000).split(Places())
