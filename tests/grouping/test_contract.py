"""What every grouping promises, over every model; new entries of either inherit these tests."""

import math
from collections import Counter

import pytest

from quietgrad import clipping
from quietgrad.grouping import Group, names, resolve, sensitivity

from .zoo import MODELS, WITHOUT_BLOCKS, built

SPECS = [*names(), "uniform:1"]
PAIRS = [
    (spec, model)
    for spec in SPECS
    for model in MODELS
    if not (spec == "block-wise" and model in WITHOUT_BLOCKS)
]

every_pair = pytest.mark.parametrize(("spec", "model"), PAIRS)


@every_pair
def test_every_trainable_parameter_is_in_exactly_one_group(spec, model):
    placed = Counter(name for group in resolve(spec, built(model)) for name in group.parameters)
    assert placed == Counter(n for n, p in built(model).named_parameters() if p.requires_grad)


@every_pair
def test_radii_are_equal_and_add_up_to_the_radius(spec, model):
    groups = resolve(spec, built(model), radius=0.3)
    assert {group.radius for group in groups} == {0.3 / math.sqrt(len(groups))}
    assert math.hypot(*(group.radius for group in groups)) == pytest.approx(0.3)


@every_pair
def test_groups_are_in_the_order_of_the_model(spec, model):
    order = [name for name, _ in built(model).named_parameters()]
    firsts = [order.index(group.parameters[0]) for group in resolve(spec, built(model))]
    assert firsts == sorted(firsts)


@every_pair
@pytest.mark.parametrize("name", clipping.names())
def test_sensitivity_is_the_norm_of_the_bounds(spec, model, name):
    groups = resolve(spec, built(model), radius=0.3)
    squares = (clipping.resolve(name).bound(group.radius) ** 2 for group in groups)
    assert sensitivity(groups, name) == pytest.approx(math.sqrt(sum(squares)))


def test_sensitivity_by_hand():
    groups = resolve("layer-wise", built("mlp"), radius=0.3)
    assert sensitivity(groups, "auto-s") == pytest.approx(0.3)
    assert sensitivity(groups, "reparam") == pytest.approx(math.sqrt(3))


def test_sensitivity_needs_groups():
    with pytest.raises(ValueError, match="no groups"):
        sensitivity((), "auto-s")


def test_the_radius_is_one_by_default():
    assert resolve("all-layer", built("mlp"))[0].radius == 1.0


@pytest.mark.parametrize("spec", SPECS)
def test_a_model_without_trainable_parameters_is_refused(spec):
    with pytest.raises(ValueError, match="no trainable parameter"):
        resolve(spec, MODELS["gpt2"]().requires_grad_(False))


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_is_positive_and_finite(radius):
    with pytest.raises(ValueError, match="positive and finite"):
        resolve("all-layer", built("mlp"), radius=radius)
    with pytest.raises(ValueError, match="positive and finite"):
        Group("g", ("weight",), radius)


def test_a_radius_is_a_number():
    with pytest.raises(TypeError, match="must be a number"):
        resolve("all-layer", built("mlp"), radius="1")


def test_a_group_has_parameters():
    with pytest.raises(ValueError, match="no parameters"):
        Group("g", (), 1.0)
