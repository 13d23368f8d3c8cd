"""How often a device is waited for, and how much is launched: ceilings for whole networks."""

import pytest
from benchmarks.device_counts import MODELS, VARIANTS, Step, only_new_is_verified
from tests.devices import pretend

pretend.register()  # before the first backward pass, for which torch counts the devices

# What the model itself waits for; launches over those of a plain step, by grouping.
OWN_WAITS = {"gpt2": 1, "gpt2-dropout": 1}
LAUNCHES = {"all-layer": 2.2, "layer-wise": 2.6}
VERIFIED = 20
NAMES = ["mlp", "resnet20", "gpt2", "gpt2-dropout", "vit"]


@pytest.fixture(autouse=True)
def _steady():
    with only_new_is_verified():
        yield


def made(name, grouping):
    return Step(MODELS[name], pretend.NAME, {"grouping": grouping, "noise": "fast"})


@pytest.mark.every_nth(10)
@pytest.mark.parametrize("grouping", LAUNCHES)
@pytest.mark.parametrize("name", NAMES)
def test_a_steady_step_waits_once_and_launches_little(name, grouping):
    plain, counts = Step(MODELS[name], pretend.NAME, None).count(), made(name, grouping).count()
    most = 1 + OWN_WAITS.get(name, 0)
    assert counts.sync_count <= most, counts.by_line(counts.syncs)
    if name != "mlp":  # what a step costs whatever the model is more than its two layers
        limit = LAUNCHES[grouping] * plain.launch_count
        assert counts.launch_count <= limit, counts.by_line(counts.launches)


@pytest.mark.every_nth(10)
@pytest.mark.parametrize("grouping", LAUNCHES)
@pytest.mark.parametrize("name", NAMES)
def test_a_verified_step_waits_seldom(name, grouping):
    step = made(name, grouping)
    for first in (True, False, False):  # which way a repeat of what is known goes is drawn
        counts = step.count(verified=True, first=first)
        assert counts.sync_count <= VERIFIED, counts.by_line(counts.syncs)


def test_variants_are_those_of_the_benchmark():
    assert {grouping for grouping, _ in VARIANTS} == {*LAUNCHES}
